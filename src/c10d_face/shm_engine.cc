#include "c10d_face/shm_engine.h"

#include <optional>
#include <utility>

namespace lockstep::c10d_face {

namespace {

// A call or a message of an endpoint. The endpoint outlives its Works.
class ShmWork final : public Work, private shm::Completion {
 public:
  ShmWork(const Caller& caller, std::shared_ptr<shm::Endpoint> endpoint, WorkInfo info)
      : Work(caller, std::move(info)), endpoint_(std::move(endpoint)) {}

  void start(comm::Request request) {
    request_ = std::move(request);
    if (comm::is_message(request_)) {
      start(message_.emplace(request_));
    } else {
      start(call_.emplace(request_));
    }
  }

  void start(comm::Request first, std::function<comm::Request()> second) {
    first_request_ = std::move(first);
    first_.emplace(first_request_);
    request_.kind = first_request_.kind;
    request_.timeout = first_request_.timeout;
    auto& call = call_.emplace(request_);
    call.predecessor = &*first_;
    call.prepare = std::move(second);
    start(call);
  }

 private:
  template <class OperationType>
  void start(OperationType& operation) {
    operation.owner = this;
    begin([&] { endpoint_->start(operation); });
  }

  shm::Operation& operation() {
    if (message_) return *message_;
    return *call_;
  }

  // shm::Completion
  void completed() noexcept override {
    first_request_.keep.clear();
    request_.keep.clear();
    settle(operation().error, message_ && !message_->outgoing ? message_->peer : kNoSource);
  }
  void conclude() noexcept override { Work::conclude(); }

  // Work
  void poll() override { endpoint_->poll(operation()); }
  Waited wait_for_it(std::optional<Clock::time_point> until) override {
    using shm::Endpoint;
    switch (endpoint_->wait(operation(), until)) {
      case Endpoint::WaitResult::TimedOut:
        return Waited::TimedOut;
      case Endpoint::WaitResult::Interrupted:
        return Waited::Interrupted;
      default:
        return Waited::Complete;
    }
  }
  void interrupt() override { endpoint_->interrupt(operation()); }
  void expect_no_polls() override { endpoint_->stop_relying_on_polls(); }
  void call_conclude() override { endpoint_->defer(*this); }
  void fail_group(const std::string& kind, const std::string& text) noexcept override {
    endpoint_->fail(kind, text);
  }

  const std::shared_ptr<shm::Endpoint> endpoint_;
  // Either message_, or call_, or call_ with its predecessor first_.
  comm::Request first_request_, request_;
  std::optional<shm::Call> first_, call_;
  std::optional<shm::Message> message_;
};

class ShmRollCall final : public RollCall {
 public:
  explicit ShmRollCall(shm::Endpoint& endpoint) : endpoint_(endpoint) {}

  void run(std::chrono::milliseconds timeout) override {
    call_.timeout = timeout;
    endpoint_.run(call_);
  }
  bool was_made() const override { return call_.error != nullptr; }
  std::vector<int> absent() override { return endpoint_.absent(call_.number); }
  std::vector<int> ended() override { return endpoint_.ended(); }

 private:
  shm::Endpoint& endpoint_;
  comm::Request barrier_;
  shm::Call call_{barrier_};
};

const Titles& titles_of_shm() {
  static const auto& titles = *new Titles("shm");
  return titles;
}

}  // namespace

ShmEngine::ShmEngine(std::shared_ptr<shm::Endpoint> endpoint)
    : Engine("shm", titles_of_shm(), endpoint->rank(), endpoint->world_size()),
      endpoint_(std::move(endpoint)) {}

WorkPtr ShmEngine::start(comm::Request request, WorkInfo info) {
  auto work = c10::make_intrusive<ShmWork>(caller(), endpoint_, std::move(info));
  work->start(std::move(request));
  return work;
}

WorkPtr ShmEngine::start(comm::Request first, std::function<comm::Request()> second, WorkInfo info) {
  auto work = c10::make_intrusive<ShmWork>(caller(), endpoint_, std::move(info));
  work->start(std::move(first), std::move(second));
  return work;
}

std::unique_ptr<RollCall> ShmEngine::roll_call() { return std::make_unique<ShmRollCall>(*endpoint_); }

}  // namespace lockstep::c10d_face
