// The other nodes' side of the meeting.
#pragma once

#include "launch/membership.h"

namespace lockstep::launch {

// Blocks until node 0 says that all are there. As join().
Membership arrive(const JoinRequest& request);

}  // namespace lockstep::launch
