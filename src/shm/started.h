// The Work (comm/work.h) of a call or message that was started on an endpoint.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "comm/work.h"
#include "shm/endpoint.h"

namespace lockstep::shm {

// OperationType: Call or Message.
template <class OperationType>
class Started final : public Work::State, private Completion {
 public:
  static std::shared_ptr<Work::State> start(std::shared_ptr<Endpoint> endpoint, Request&& request) {
    auto started = std::make_shared<Started>(std::move(endpoint), std::move(request));
    // The engine refers to it until it is complete, even if the Work is destroyed.
    started->self_ = started;
    try {
      started->endpoint_->start(started->operation_);
    } catch (...) {
      started->self_.reset();
      throw;
    }
    return started;
  }

  Started(std::shared_ptr<Endpoint> endpoint, Request&& described)
      : State(std::move(described)), endpoint_(std::move(endpoint)), operation_(request) {
    operation_.owner = this;
  }

  void complete() override {
    endpoint_->wait(operation_, std::nullopt);
    if (operation_.error) std::rethrow_exception(operation_.error);
  }
  bool is_done() override { return endpoint_->poll(operation_); }
  std::optional<Clock::time_point> ended() const override {
    if (operation_.ended == Clock::time_point{}) return std::nullopt;
    return operation_.ended;
  }

 private:
  void completed() noexcept override { const auto last_reference = std::move(self_); }
  void conclude() noexcept override {}

  const std::shared_ptr<Endpoint> endpoint_;
  OperationType operation_;
  std::shared_ptr<Started> self_;
};

}  // namespace lockstep::shm
