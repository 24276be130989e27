// A task of rank 0 that runs in its own thread. If the thread cannot be started, get() throws the error, so
// that it reaches all ranks in the same way as an error of the task.
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

  // prepare: runs in the calling thread and returns the function that the new thread calls. start() does not
  // throw; get() throws the errors of both.
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

  // A task was started and get() has not been called.
  bool pending() const { return running_.valid() || failure_; }
  bool done_within(std::chrono::milliseconds time) const {
    return !running_.valid() || running_.wait_for(time) == std::future_status::ready;
  }
  // Blocks until the task has ended, and throws its error.
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
                         .hint = "raise the limit on processes (ulimit -u, or the limit of the container)"}));
    }
  }

 private:
  std::future<void> running_;
  std::exception_ptr failure_;
};

}  // namespace lockstep::snapshot
