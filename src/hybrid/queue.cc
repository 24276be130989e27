#include "hybrid/queue.h"

#include <algorithm>
#include <pthread.h>
#include <utility>

#include "hybrid/window.h"

namespace lockstep::hybrid {

Queue::Queue(std::function<void(Entry&)> open, Explain explain)
    : open_(std::move(open)), explain_(std::move(explain)) {}

Queue::~Queue() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (auto& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

// ---- For the callers

void Queue::submit(const EntryPtr& entry) {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  for (const auto half : {Half::Front, Half::Back}) {
    auto& thread = threads_[static_cast<size_t>(half)];
    if (!thread.joinable()) thread = std::thread([this, half] { run_thread(half); });
  }
  under_way_.push_back(entry);
  changed_.notify_all();
}

void Queue::run(const EntryPtr& entry) {
  {
    Lock lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    if (under_way_.empty()) {
      under_way_.push_back(entry);
      inline_ = true;
      lock.unlock();
      execute(*entry);
      return;
    }
  }
  submit(entry);
  wait(*entry);
}

void Queue::execute(Entry& entry) {
  const size_t steps = entry.operation->steps();
  while (!entry.complete) {
    const bool front = entry.fronts < steps && entry.fronts - entry.backs < kWindow;
    step(entry, front ? Half::Front : Half::Back);
  }
  {
    const std::lock_guard lock(mutex_);
    inline_ = false;
  }
  changed_.notify_all();
  if (entry.error) std::rethrow_exception(entry.error);
}

void Queue::wait(Entry& entry) {
  Lock lock(mutex_);
  changed_.wait(lock, [&] { return entry.complete; });
  if (entry.error) std::rethrow_exception(entry.error);
}

bool Queue::is_complete(const Entry& entry) const {
  const std::lock_guard lock(mutex_);
  return entry.complete;
}

void Queue::throw_if_failed() const {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

void Queue::fail(std::exception_ptr error) noexcept {
  if (failed_.exchange(true)) return;
  const std::lock_guard lock(mutex_);
  failure_ = std::move(error);
  report_failure();
}

// ---- The two halves

void Queue::run_thread(Half half) {
  ::pthread_setname_np(::pthread_self(), half == Half::Front ? "lockstep-front" : "lockstep-back");
  Lock lock(mutex_);
  while (auto* entry = next(lock, half)) {
    lock.unlock();
    step(*entry, half);
    lock.lock();
  }
}

Queue::Entry* Queue::next(Lock& lock, Half half) {
  for (;;) {
    if (failed_ || (ending_ && under_way_.empty())) return nullptr;
    if (!inline_) {
      if (half == Half::Front) {
        if (auto* entry = ready_front()) return entry;
      } else if (!under_way_.empty() && under_way_.front()->backs < under_way_.front()->fronts) {
        return under_way_.front().get();
      }
    }
    changed_.wait(lock);
  }
}

Queue::Entry* Queue::ready_front() {
  size_t ahead = 0;
  for (size_t i = 0; i < under_way_.size(); ++i) {
    auto& entry = *under_way_[i];
    ahead += entry.fronts - entry.backs;
    if (ahead >= kWindow) return nullptr;
    if (entry.fronts == entry.operation->steps()) continue;
    // What an earlier call has still to write is not there yet.
    const auto earlier = under_way_.begin() + static_cast<std::ptrdiff_t>(i);
    const bool must_wait = std::any_of(under_way_.begin(), earlier, [&](const EntryPtr& other) {
      return conflict(other->request, entry.request);
    });
    return must_wait ? nullptr : &entry;
  }
  return nullptr;
}

bool Queue::conflict(const comm::Request& earlier, const comm::Request& later) {
  if (later.kind == comm::Kind::Barrier) return true;
  const auto overlap = [](const comm::Pieces& some, const comm::Pieces& others) {
    return std::any_of(some.begin(), some.end(), [&](const comm::Piece& a) {
      return std::any_of(others.begin(), others.end(),
                         [&](const comm::Piece& b) { return comm::common(a, b).bytes > 0; });
    });
  };
  return overlap(earlier.take, later.give) || overlap(earlier.take, later.take) ||
         overlap(earlier.give, later.take);
}

void Queue::step(Entry& entry, Half half) noexcept {
  {
    const std::lock_guard lock(mutex_);
    ++running_;
  }
  std::exception_ptr error;
  try {
    auto& operation = *entry.operation;
    if (half == Half::Front) {
      operation.front(entry.fronts);
    } else {
      if (entry.backs == 0) open_(entry);
      operation.back(entry.backs);
    }
  } catch (...) {
    if (!failed_.exchange(true)) error = explain_(entry);
  }
  const std::lock_guard lock(mutex_);
  --running_;
  if (error) failure_ = error;
  if (!failed_) end_step(entry, half);
  report_failure();
  changed_.notify_all();
}

void Queue::end_step(Entry& entry, Half half) {
  ++(half == Half::Front ? entry.fronts : entry.backs);
  if (entry.backs < entry.operation->steps()) return;
  entry.ended = Clock::now();
  entry.complete = true;
  under_way_.pop_front();
}

void Queue::report_failure() {
  if (!failure_ || running_ > 0) return;
  for (const auto& entry : under_way_) {
    entry->error = failure_;
    entry->ended = Clock::now();
    entry->complete = true;
  }
  changed_.notify_all();
}

}  // namespace lockstep::hybrid
