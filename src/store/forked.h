// Closes sockets in forked children. A child shares its parent's sockets: while the child has them open, the
// peer does not notice that the parent has ended.
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

  // Whether this object is a copy in a forked child of the process that created it.
  bool in_child() const { return ::getpid() != pid_; }

  // Called in the child before fork() returns. The other threads do not exist there, but the locks that they
  // held are still locked: close descriptors and do nothing else.
  virtual void close_in_child() = 0;

 protected:
  // Hold this lock while changing what close_in_child() reads: it delays forks.
  static std::unique_lock<std::mutex> no_forks();

 private:
  const pid_t pid_ = ::getpid();
};

}  // namespace lockstep::store
