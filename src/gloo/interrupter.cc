#include "gloo/interrupter.h"

#include <chrono>
#include <pthread.h>
#include <stdexcept>
#include <utility>

namespace lockstep::gloo {

namespace {

using namespace std::chrono_literals;

constexpr auto kLookEvery = 100ms;

}  // namespace

Interrupter::~Interrupter() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Interrupter::wait(const c10::intrusive_ptr<c10d::Work>& work, const std::function<bool()>& hopeless) {
  std::unique_lock lock(mutex_);
  if (!thread_.joinable()) {
    thread_ = std::thread([this] {
      ::pthread_setname_np(::pthread_self(), "gloo-messages");
      look();
    });
  }
  const auto mine = waiting_.insert(waiting_.end(), {work.get(), &hopeless});
  used_ = true;
  if (asleep_) changed_.notify_all();
  bool done = false;
  std::exception_ptr error;
  do {
    lock.unlock();
    try {
      done = work->wait();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    // The abort may have been meant for an earlier wait for the same work.
  } while (!done && !error && !hopeless());
  waiting_.erase(mine);
  lock.unlock();
  if (error) std::rethrow_exception(error);
  if (!done) throw std::runtime_error("the wait for a message was given up");
}

void Interrupter::look() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (!std::exchange(used_, false) && waiting_.empty()) {
      asleep_ = true;
      changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
      asleep_ = false;
    }
    changed_.wait_for(lock, kLookEvery, [this] { return ending_; });
    for (const auto& one : waiting_) {
      if ((*one.hopeless)()) one.work->abort();
    }
  }
}

}  // namespace lockstep::gloo
