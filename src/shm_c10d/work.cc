#include "shm_c10d/work.h"

#include <fmt/format.h>

#include <ATen/core/ivalue.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "comm/dense.h"
#include "comm/from_tensors.h"
#include "shm_c10d/bindings.h"

namespace lockstep::shm_c10d {

Work::Work(std::shared_ptr<shm::Endpoint> endpoint, WorkInfo info)
    : c10d::Work(endpoint->rank(), info.type, info.title, info.inputs),
      endpoint_(std::move(endpoint)),
      info_(std::move(info)) {}

c10::intrusive_ptr<Work> Work::start(std::shared_ptr<shm::Endpoint> endpoint, comm::Request request,
                                     WorkInfo info, std::chrono::milliseconds timeout) {
  auto work = c10::make_intrusive<Work>(std::move(endpoint), std::move(info));
  work->request_ = std::move(request);
  work->call_.emplace(work->request_);
  work->start_call(timeout);
  return work;
}

c10::intrusive_ptr<Work> Work::start(std::shared_ptr<shm::Endpoint> endpoint, comm::Request first,
                                     std::function<comm::Request()> second, WorkInfo info,
                                     std::chrono::milliseconds timeout) {
  auto work = c10::make_intrusive<Work>(std::move(endpoint), std::move(info));
  work->first_request_ = std::move(first);
  work->first_.emplace(work->first_request_);
  work->request_.kind = work->first_request_.kind;
  work->call_.emplace(work->request_);
  work->call_->predecessor = &*work->first_;
  work->call_->prepare = std::move(second);
  work->start_call(timeout);
  return work;
}

void Work::start_call(std::chrono::milliseconds timeout) {
  call_->timeout = timeout;
  call_->owner = this;
  self_ = c10::intrusive_ptr<Work>::reclaim_copy(this);
  try {
    endpoint_->start(*call_);
  } catch (...) {
    self_.reset();
    std::rethrow_exception(translated(std::current_exception()));
  }
}

c10::intrusive_ptr<Work> Work::send(std::shared_ptr<shm::Endpoint> endpoint, const at::Tensor& tensor, int to,
                                    int tag) {
  auto work = c10::make_intrusive<Work>(
      std::move(endpoint), WorkInfo{.title = "shm:send", .type = c10d::OpType::SEND, .inputs = {tensor}});
  work->start_message(comm::send_of(tensor, to, tag), tensor);
  return work;
}

c10::intrusive_ptr<Work> Work::receive(std::shared_ptr<shm::Endpoint> endpoint, const at::Tensor& tensor,
                                       int from, int tag) {
  const bool any = from == comm::kAnyRank;
  auto work = c10::make_intrusive<Work>(
      std::move(endpoint), WorkInfo{.title = any ? "shm:recvAnySource" : "shm:recv",
                                    .type = any ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV,
                                    .inputs = {tensor},
                                    .outputs = {{tensor}}});
  const auto landed = comm::landing_place(tensor);
  work->info_.finish = [tensor, landed] { comm::bring_home(tensor, landed); };
  work->start_message(comm::receive_of(landed, from, tag), landed);
  return work;
}

void Work::start_message(comm::Request request, const at::Tensor& tensor) {
  message_.emplace(request);
  message_->owner = this;
  info_.keep_alive = {tensor};
  self_ = c10::intrusive_ptr<Work>::reclaim_copy(this);
  try {
    endpoint_->start(*message_);
  } catch (...) {
    self_.reset();
    std::rethrow_exception(translated(std::current_exception()));
  }
}

shm::Operation& Work::operation() {
  if (message_) return *message_;
  return *call_;
}

void Work::completed() noexcept {
  error_ = translated(operation().error);
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
    endpoint_->defer(*this);
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
  endpoint_->fail(
      "Error", base::compose({.what = fmt::format("a callback of {} threw", info_.title),
                              .where = fmt::format("rank {}/{}", endpoint_->rank(), endpoint_->world_size()),
                              .evidence = why,
                              .hint = "catch exceptions inside the callback"}));
}

bool Work::isCompleted() {
  if (c10d::Work::isCompleted()) return true;
  endpoint_->poll(operation());
  return c10d::Work::isCompleted();
}

int Work::sourceRank() const {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(completed_ && message_ && !message_->outgoing,
              "sourceRank() is available only after a message was received");
  return message_->peer;
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
    std::optional<shm::Endpoint::Clock::time_point> until;
    if (timeout.count() > 0) until = shm::Endpoint::Clock::now() + timeout;
    const auto waited = endpoint_->wait(operation(), until);
    if (waited == shm::Endpoint::WaitResult::Interrupted) return false;
    if (waited == shm::Endpoint::WaitResult::TimedOut) {
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
  if (const auto error = c10d::Work::exception()) std::rethrow_exception(error);
  return true;
}

void Work::abort() { endpoint_->interrupt(operation()); }

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
    endpoint_->stop_relying_on_polls();  // a thread that waits for the future does not advance the operation
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

}  // namespace lockstep::shm_c10d
