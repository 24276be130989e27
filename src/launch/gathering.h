// How node 0 waits for the other nodes.
#pragma once

#include "launch/membership.h"

namespace lockstep::launch {

// Blocks until each of the other nodes has joined. Throws as join() does.
Membership gather(const JoinRequest& request, base::Fd listener, const Warn& warn);

}  // namespace lockstep::launch
