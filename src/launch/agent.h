// The agent of one node: starts the workers, supervises them, and executes the orders of node 0's agent,
// which on node 0 is this agent itself.
#pragma once

#include "launch/guard.h"
#include "launch/options.h"

namespace lockstep::launch {

// Runs this node's part of the job and returns the exit status. Reports on stderr. Must be called on the main
// thread of a process started by run_guarded().
int run_agent(const RunOptions& options, GuardedContext context);

}  // namespace lockstep::launch
