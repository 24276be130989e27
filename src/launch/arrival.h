// How a node other than node 0 joins the job.
#pragma once

#include "launch/membership.h"

namespace lockstep::launch {

// Connects to node 0 and blocks until all nodes have joined. Throws as join() does.
Membership arrive(const JoinRequest& request);

}  // namespace lockstep::launch
