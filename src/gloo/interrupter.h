// Ends waits of a c10d backend that nobody can give up otherwise.
//
// Gloo's wait for a message is one call with nothing to look around from; given a timeout, it tears down all
// connections. But another thread may abort it. That thread starts with the first wait, and looks only while
// there are waits, or have just been some: to wake it for every wait would cost more than most waits.
// Thread-safe.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace lockstep::gloo {

class Interrupter {
 public:
  Interrupter() = default;
  ~Interrupter();

  // Waits for the work. `hopeless` is asked on the other thread and on this one, never on both at once, and
  // must be safe there while any wait lasts.
  // Throws what the work throws, and std::runtime_error when it was given up.
  void wait(const c10::intrusive_ptr<c10d::Work>& work, const std::function<bool()>& hopeless);

 private:
  struct Waiting {
    c10d::Work* work;
    const std::function<bool()>* hopeless;
  };
  void look();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Waiting> waiting_;
  bool used_ = false;    // since the thread has looked
  bool asleep_ = false;  // until somebody wakes it
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace lockstep::gloo
