// The process that the user started. It starts the agent, which does all the work, and then only watches it:
// if either of the two is killed with `kill -9`, the other ends what is left of the job.
//
//   guard ── agent ── worker ── processes that the worker starts
//
// If the agent is killed, the kernel kills the workers (PR_SET_PDEATHSIG); the processes that they had
// started become children of the guard, which kills them. If the guard is killed, the agent reads end of file
// from a pipe and kills everything.
#pragma once

#include <functional>

#include "base/fd.h"
#include "launch/signals.h"

namespace lockstep::launch {

struct GuardedContext {
  Signals signals;
  base::Fd guard;  // readable (end of file) once the guard has ended
};

// Forks, and runs `agent` in the child in a process group of its own, so that a Ctrl-C at the terminal
// reaches only the guard. The guard forwards signals to the agent. Returns the agent's exit status, in the
// guard. The process must have only one thread.
int run_guarded(const std::function<int(GuardedContext)>& agent);

}  // namespace lockstep::launch
