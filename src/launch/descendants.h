// The descendants of this process. With PR_SET_CHILD_SUBREAPER none of them escapes: a process that loses its
// parent, even in a session of its own, becomes a child of its nearest subreaper ancestor.
#pragma once

#include <chrono>
#include <cstddef>
#include <set>
#include <sys/types.h>
#include <vector>

#include "base/deadline.h"

namespace lockstep::launch {

void become_subreaper();

// Children, grandchildren and so on, without zombies. Not atomic: a process may fork before this returns.
std::vector<pid_t> descendants();

// Ends all descendants in steps: sends SIGTERM (unless `grace` is 0), and after the grace period SIGKILL,
// repeatedly, until none is left. Reaps all children, so children whose status matters must have been waited
// for before. Gives up 10 s after the grace period, in case the kernel cannot end a process (a dead disk).
class Sweep {
 public:
  explicit Sweep(std::chrono::milliseconds grace);

  // Does not block. Call it every few milliseconds until it returns false: no process is left, or it has
  // given up.
  bool step();
  // Ends the grace period: the next step sends SIGKILL.
  void hurry();
  // The number of processes that were sent a signal.
  size_t signalled() const { return signalled_.size(); }

 private:
  base::Deadline grace_;
  base::Deadline give_up_;
  std::set<pid_t> signalled_;
};

// Runs a whole sweep. Blocks for `grace` and a little longer. Returns the number of processes that were sent
// a signal.
size_t end_descendants(std::chrono::milliseconds grace);

}  // namespace lockstep::launch
