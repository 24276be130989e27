// The processes below this one. With PR_SET_CHILD_SUBREAPER a process keeps all of them: whoever loses its
// parent, even in a session of its own, becomes a child of the nearest subreaper above.
#pragma once

#include <chrono>
#include <cstddef>
#include <set>
#include <sys/types.h>
#include <vector>

#include "base/deadline.h"

namespace lockstep::launch {

void become_subreaper();

// Children and their children, zombies left out. Not atomic: a process that forks may have a new child by the
// time this returns.
std::vector<pid_t> descendants();

// Ends all descendants, a step at a time: SIGTERM first, unless `grace` is 0, SIGKILL after it, again and
// again until none is left. Reaps those that are children, so the caller's own children must have been waited
// for. A process that the kernel does not let go of (waiting for a dead disk) is given up 10 s after the
// grace.
class Sweep {
 public:
  explicit Sweep(std::chrono::milliseconds grace);

  // Does not block. Call it again every few milliseconds; false when none is left, or they were given up.
  bool step();
  // No more grace: the next step kills.
  void hurry();
  // How many processes were sent a signal.
  size_t signalled() const { return signalled_.size(); }

 private:
  base::Deadline polite_;
  base::Deadline give_up_;
  std::set<pid_t> signalled_;
};

// The whole sweep. Blocks for `grace` and a little more. Returns how many processes were sent a signal.
size_t end_descendants(std::chrono::milliseconds grace);

}  // namespace lockstep::launch
