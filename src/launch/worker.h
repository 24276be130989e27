// Starts one worker process.
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

#include "base/fd.h"
#include "launch/signals.h"

namespace lockstep::launch {

struct WorkerSpec {
  std::string path;                      // what find_program() gave
  std::vector<std::string> arguments;    // argv, the program's name first
  std::vector<std::string> environment;  // "NAME=value"; LOCKSTEP_NOTE_FD is added
  std::vector<int> cpus;                 // to run on; empty leaves that alone
};

struct WorkerProcess {
  pid_t pid = 0;  // also its process group
  // Reading ends, non-blocking.
  base::Fd out;
  base::Fd err;
  base::Fd note;
};

// Forks and executes. The worker leads a process group of its own, reads from /dev/null, and is killed by the
// kernel when the calling *thread* ends, which must therefore be the one that lives as long as the job.
// Returns when the program has been executed; throws CannotStart when it could not be.
WorkerProcess start_worker(const WorkerSpec& spec, const Signals& signals);

}  // namespace lockstep::launch
