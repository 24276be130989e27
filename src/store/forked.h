// Sockets that a forked child must not keep. It shares them with its parent: as long as the child lives, the
// other side would not see the parent end.
#pragma once

#include <mutex>
#include <unistd.h>

namespace lockstep::store {

class ClosedAfterFork {
 public:
  ClosedAfterFork();
  virtual ~ClosedAfterFork();
  ClosedAfterFork(const ClosedAfterFork&) = delete;
  ClosedAfterFork& operator=(const ClosedAfterFork&) = delete;

  // Whether this is a copy in a child of the process that made it.
  bool in_child() const { return ::getpid() != pid_; }

  // Runs in the child, before fork() returns. Other threads are gone there, whatever they held: take no lock,
  // close descriptors and nothing else.
  virtual void close_in_child() = 0;

 protected:
  // To be held while what close_in_child() looks at is changed: no fork happens meanwhile.
  static std::unique_lock<std::mutex> no_forks();

 private:
  const pid_t pid_ = ::getpid();
};

}  // namespace lockstep::store
