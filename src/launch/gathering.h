// Node 0's side of the meeting.
#pragma once

#include "launch/membership.h"

namespace lockstep::launch {

// Blocks until one hello has come from each of the other nodes. As join().
Membership gather(const JoinRequest& request, base::Fd listener, const Warn& warn);

}  // namespace lockstep::launch
