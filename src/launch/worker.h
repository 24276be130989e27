// Starts one worker process.
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

#include "base/fd.h"
#include "launch/signals.h"

namespace lockstep::launch {

struct WorkerSpec {
  std::string path;                      // from find_program()
  std::vector<std::string> arguments;    // argv, beginning with the program's name
  std::vector<std::string> environment;  // "NAME=value"; LOCKSTEP_NOTE_FD is added
  std::vector<int> cpus;                 // to bind to; empty: do not bind
};

struct WorkerProcess {
  pid_t pid = 0;  // also the id of its process group
  // Reading ends of pipes, non-blocking.
  base::Fd out;
  base::Fd err;
  base::Fd note;
};

// Forks and executes a program. The worker has a session and a process group of its own and /dev/null as
// stdin. The kernel kills it when the calling *thread* ends, which must therefore live as long as the job.
// Returns once the program has been executed; throws CannotStart if that failed.
WorkerProcess start_worker(const WorkerSpec& spec, const Signals& signals);

}  // namespace lockstep::launch
