// The processes below this one. With PR_SET_CHILD_SUBREAPER a process keeps all of them: whoever loses its
// parent, even in a session of its own, becomes a child of the nearest subreaper above.
#pragma once

#include <chrono>
#include <cstddef>
#include <sys/types.h>
#include <vector>

namespace lockstep::launch {

void become_subreaper();

// Children and their children, zombies left out. Not atomic: a process that forks may have a new child by the
// time this returns.
std::vector<pid_t> descendants();

// Ends all descendants: SIGTERM first, unless `grace` is 0, SIGKILL after it, again and again until none is
// left. Reaps those that are children, so the caller's own children must have been waited for. Blocks for
// `grace` and a little more; a process that the kernel does not let go of (waiting for a dead disk) is given
// up after 10 s. Returns how many processes were sent a signal.
size_t end_descendants(std::chrono::milliseconds grace);

}  // namespace lockstep::launch
