// The agent of one node: starts the workers, watches them, and does what node 0's agent orders, which on node
// 0 it is itself.
#pragma once

#include "launch/guard.h"
#include "launch/options.h"

namespace lockstep::launch {

// Runs the job's part on this node to its end; returns the exit status. Reports on stderr. Call it on the
// main thread of a process made by run_guarded().
int run_agent(const RunOptions& options, GuardedContext context);

}  // namespace lockstep::launch
