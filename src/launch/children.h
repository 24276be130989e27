// The child processes of a job on this machine, one for each rank: which of them run, signals to all of them,
// and how each ended. Shared by the agent (gang.h) and spawn(), which start their children and wait for them
// in different ways.
//
// A child that has ended stays a zombie for a while: the other ranks read from it how it ended. (From
// Linux 6.15 on, they could read that from a pidfd, too.)
//
// Not thread-safe. Never blocks.
#pragma once

#include <chrono>
#include <optional>
#include <sys/types.h>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "launch/verdict.h"

namespace lockstep::launch {

struct Child {
  int rank = 0;
  int local_rank = 0;
  pid_t pid = 0;   // also the id of its process group
  base::Fd note;   // reading end of the pipe in its LOCKSTEP_NOTE_FD, non-blocking
  base::Fd pidfd;  // readable once the child has ended; empty if nobody polls it or the kernel has no pidfds
};

class Children {
 public:
  // `readable`: how long a child that has ended stays a zombie. The other ranks look at each other every few
  // milliseconds while they wait; a busy machine may delay them.
  explicit Children(std::chrono::milliseconds readable = std::chrono::seconds(5)) : readable_(readable) {}

  void add(Child child) { running_.push_back(std::move(child)); }

  bool empty() const { return running_.empty(); }
  const std::vector<Child>& running() const { return running_; }  // in the order of add()
  std::vector<int> running_ranks() const;                         // ascending

  // Signals the process group of each child: the child itself may be a script that started the program.
  void signal_groups(int signal) const;
  // Signals each child alone, and not what it has started.
  void signal_leaders(int signal) const;

  // The ends of the children that have ended since the last call, with their notes. RankEnd::host is left
  // empty.
  std::vector<RankEnd> take_ended();
  // Reaps those of them that the others have had time to read, or all if no child is left to read them.
  // Returns when to call it again: nullopt if no zombie is left.
  std::optional<base::Deadline> reap();
  // Forgets all children and closes their descriptors; does not end or reap them.
  void clear();

 private:
  struct Zombie {
    pid_t pid;
    base::Deadline until;
  };

  const std::chrono::milliseconds readable_;
  std::vector<Child> running_;
  std::vector<Zombie> zombies_;  // the oldest first
};

}  // namespace lockstep::launch
