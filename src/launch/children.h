// The child processes of a job on this machine, one for each rank: which of them run, signals to all of them,
// and how each ended. Shared by the agent (gang.h) and spawn(), which start their children and wait for them
// in different ways.
//
// Not thread-safe. Does not wait for anybody: the owner calls waitpid(2) and passes the result to remove().
#pragma once

#include <optional>
#include <sys/types.h>
#include <vector>

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
  void add(Child child) { running_.push_back(std::move(child)); }

  bool empty() const { return running_.empty(); }
  const std::vector<Child>& running() const { return running_; }  // in the order of add()
  std::vector<int> running_ranks() const;                         // ascending

  // Signals the process group of each child: the child itself may be a script that started the program.
  void signal_groups(int signal) const;
  // Signals each child alone, and not what it has started.
  void signal_leaders(int signal) const;

  // Removes the child that waitpid(2) returned and reads its note. nullopt if `pid` is not one of these
  // children. RankEnd::host is left empty.
  std::optional<RankEnd> remove(pid_t pid, int wait_status);
  // Forgets all children and closes their descriptors; does not end or reap them.
  void clear() { running_.clear(); }

 private:
  std::vector<Child> running_;
};

}  // namespace lockstep::launch
