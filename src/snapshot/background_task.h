// Something that is done in a thread of its own, by rank 0. A task that could not begin counts as one that is
// done and has failed, so that its error takes the same way to all ranks as any other.
#pragma once

#include <chrono>
#include <exception>
#include <future>
#include <system_error>
#include <utility>

#include <lockstep/error.h>

#include "base/error_text.h"

namespace lockstep::snapshot {

class BackgroundTask {
 public:
  BackgroundTask() = default;

  // prepare: runs here and returns what the thread does. Never throws: get() does.
  template <class Prepare>
  static BackgroundTask start(Prepare&& prepare) noexcept {
    BackgroundTask task;
    try {
      task.running_ = std::async(std::launch::async, prepare());
    } catch (...) {
      task.failure_ = std::current_exception();
    }
    return task;
  }

  // Something was started and get() has not been called.
  bool pending() const { return running_.valid() || failure_; }
  bool done_within(std::chrono::milliseconds time) const {
    return !running_.valid() || running_.wait_for(time) == std::future_status::ready;
  }
  // Waits, and throws what the task threw.
  void get() {
    if (running_.valid()) return running_.get();
    const auto failure = std::exchange(failure_, nullptr);
    if (!failure) return;
    try {
      std::rethrow_exception(failure);
    } catch (const std::system_error& error) {
      throw SystemError(
          base::compose({.what = "cannot start a thread to read or write snapshots",
                         .where = "rank 0",
                         .evidence = error.what(),
                         .hint = "raise the limit on processes (ulimit -u, or that of the container)"}));
    }
  }

 private:
  std::future<void> running_;
  std::exception_ptr failure_;
};

}  // namespace lockstep::snapshot
