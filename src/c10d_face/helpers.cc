#include "c10d_face/helpers.h"

#include <pthread.h>
#include <system_error>
#include <thread>
#include <utility>

#include <lockstep/error.h>

#include "base/error_text.h"

namespace lockstep::c10d_face {

namespace {

constexpr size_t kMostIdle = 4;

}  // namespace

void Helpers::run(Task task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  if (tasks_.size() <= idle_) {
    changed_.notify_one();
    return;
  }
  try {
    std::thread([self = shared_from_this()] {
      ::pthread_setname_np(::pthread_self(), "lockstep-c10d");
      self->work();
    }).detach();
  } catch (const std::system_error& error) {
    tasks_.pop_back();
    throw SystemError(base::compose({.what = "cannot start a thread for a c10d backend",
                                     .evidence = error.what(),
                                     .hint = "raise the limit of processes and threads (ulimit -u)"}));
  }
}

void Helpers::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

void Helpers::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    while (!tasks_.empty()) {
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
    }
    if (closed_ || idle_ >= kMostIdle) return;
    ++idle_;
    changed_.wait(lock, [this] { return closed_ || !tasks_.empty(); });
    --idle_;
  }
}

}  // namespace lockstep::c10d_face
