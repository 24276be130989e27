// Gives up waits of a c10d backend that cannot be given up otherwise.
//
// Gloo waits for a message in a single call, which checks nothing else; with a timeout, it closes all
// connections. But another thread can abort the wait. That thread is started by the first wait. It checks
// only while there are waits, or if there were some since it last checked: waking it for every wait would
// cost more than most waits.
//
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

  // Blocks until the work is complete. `hopeless` is called on the other thread and on this one, never on
  // both at once; it must be safe to call while any wait lasts. Throws the exception of the work, or
  // std::runtime_error if the wait was given up.
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
  bool used_ = false;    // since the thread last checked
  bool asleep_ = false;  // until the next wait wakes it
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace lockstep::gloo
