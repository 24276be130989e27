// The process that the user started. It starts the agent, which does everything, and then only watches: that
// way each of the two outlives a `kill -9` of the other and ends what is left of the job.
//
//   guard ── agent ── worker ── whatever the worker starts
//
// Agent killed: the workers get the SIGKILL that they asked the kernel for (PR_SET_PDEATHSIG), and what they
// had started becomes the guard's, which kills it. Guard killed: the agent sees its pipe close and kills
// everything.
#pragma once

#include <functional>

#include "base/fd.h"
#include "launch/signals.h"

namespace lockstep::launch {

struct GuardedContext {
  Signals signals;
  base::Fd guard;  // readable (end of file) when the guard is gone
};

// Forks; runs `agent` in the child, in a process group of its own, so that a Ctrl-C at the terminal reaches
// the guard alone. The guard passes signals on. Returns, in the guard, the exit status of the agent. The
// caller must not have threads.
int run_guarded(const std::function<int(GuardedContext)>& agent);

}  // namespace lockstep::launch
