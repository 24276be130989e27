#include "c10d_face/work.h"

#include <fmt/format.h>
#include <utility>

#include <ATen/core/ivalue.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "c10d_face/bindings.h"

namespace lockstep::c10d_face {

Work::Work(const Caller& caller, WorkInfo info)
    : c10d::Work(caller.rank, info.type, caller.titles.of(info.type), info.inputs),
      title_(caller.titles.of(info.type)),
      world_size_(caller.world_size),
      info_(std::move(info)) {}

std::exception_ptr Work::translated_current() noexcept { return translated(std::current_exception()); }

void Work::settle(std::exception_ptr error, int source) noexcept {
  error_ = translated(std::move(error));
  source_ = source;
  try {
    if (!error_ && info_.finish) info_.finish();
  } catch (...) {
    error_ = std::current_exception();
  }
  release_memory();
  bool has_future = false;
  {
    const std::lock_guard lock(mutex_);
    has_future = future_ != nullptr;
  }
  // A future has user callbacks. They may need a lock that the user holds in this thread.
  if (has_future) {
    call_conclude();
  } else {
    conclude();
  }
}

// Memory that belongs to Python is freed only while the interpreter runs, as callbacks are called.
void Work::release_memory() noexcept {
  const RunningCallbacks callbacks;
  if (!callbacks.allowed()) return;
  info_.finish = nullptr;
  info_.keep_alive.clear();
}

void Work::conclude() noexcept {
  const RunningCallbacks callbacks;
  run_callbacks();
  if (callbacks.allowed()) let_go();
  finish(error_);
  run_callbacks();  // of a future that was requested meanwhile
  // This may destroy *this, so no member may be accessed afterwards. (self_.reset() would write to it after
  // the destruction.)
  auto last_reference = std::move(self_);
  if (!callbacks.allowed()) last_reference.release();
}

// No caller can catch what a callback throws, so it becomes an error of the group.
void Work::run_callbacks() noexcept {
  const RunningCallbacks callbacks;
  if (!callbacks.allowed()) return;
  std::string why;
  try {
    complete_future();
    return;
  } catch (const std::exception& error) {
    why = error.what();
  } catch (...) {
    why = base::kNoMessage;
  }
  fail_group("Error", base::compose({.what = fmt::format("a callback of {} threw", title_),
                                     .where = fmt::format("rank {}/{}", rank_, world_size_),
                                     .evidence = why,
                                     .hint = "catch exceptions inside the callback"}));
}

bool Work::isCompleted() {
  if (c10d::Work::isCompleted()) return true;
  poll();
  return c10d::Work::isCompleted();
}

int Work::sourceRank() const {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(completed_ && source_ != kNoSource,
              "sourceRank() is available only after a message was received");
  return source_;
}

std::vector<at::Tensor> Work::result() {
  TORCH_CHECK(isCompleted(),
              "Work needs to be completed before calling result(). Should call wait() before result().");
  TORCH_CHECK(info_.outputs.size() <= 1,
              "work result does not support list of lists, use .getFuture() and value()");
  return info_.outputs.empty() ? std::vector<at::Tensor>{} : info_.outputs.front();
}

bool Work::wait(std::chrono::milliseconds timeout) {
  if (!c10d::Work::isCompleted()) {
    std::optional<Clock::time_point> until;
    if (timeout.count() > 0) until = Clock::now() + timeout;
    const auto waited = wait_for_it(until);
    if (waited == Waited::Interrupted) return false;
    if (waited == Waited::TimedOut) {
      throw TimeoutError(
          fmt::format("Timed out: the operation was not complete after {} ms; it continues\nhint: "
                      "wait again, or longer",
                      timeout.count()));
    }
    // Another thread may still be running callbacks of the future, before it sets completed_.
    std::unique_lock lock(mutex_);
    const auto done = [&] { return completed_; };
    if (!until) {
      cv_.wait(lock, done);
    } else if (!cv_.wait_until(lock, *until, done)) {
      throw TimeoutError(
          "Timed out: the callbacks of the operation have not returned\nhint: wait again, or longer");
    }
  }
  run_callbacks();  // of a future that was requested while the operation ended
  if (const auto error = c10d::Work::exception()) std::rethrow_exception(error);
  return true;
}

c10::IValue Work::value() const {
  if (info_.outputs.empty()) return std::vector<at::Tensor>{};
  if (info_.outputs.size() == 1) return info_.outputs.front();
  return info_.outputs;
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  bool done = false;
  {
    const std::lock_guard lock(mutex_);
    if (!future_) {
      const auto tensors = c10::ListType::ofTensors();
      future_ = c10::make_intrusive<c10::ivalue::Future>(
          info_.outputs.size() > 1 ? c10::TypePtr(c10::ListType::create(tensors)) : c10::TypePtr(tensors));
    }
    done = completed_;
  }
  if (done) {
    complete_future();
  } else {
    expect_no_polls();
  }
  return future_;
}

void Work::complete_future() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    if (!future_ || future_completed_) return;
    future_completed_ = true;
    future = future_;
    error = error_;
  }
  if (error) {
    future->setError(error);
  } else {
    future->markCompleted(value());
  }
}

}  // namespace lockstep::c10d_face
