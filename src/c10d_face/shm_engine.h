// The engine of ranks that share memory: calls and messages of an endpoint (shm/endpoint.h), without anything
// between it and the Works.
#pragma once

#include <memory>

#include "c10d_face/engine.h"
#include "shm/endpoint.h"

namespace lockstep::c10d_face {

class ShmEngine final : public Engine {
 public:
  // Becomes an owner of the endpoint; the destructor calls its retire().
  explicit ShmEngine(std::shared_ptr<shm::Endpoint> endpoint);
  ~ShmEngine() override { endpoint_->retire(); }

  std::chrono::milliseconds timeout() const override { return endpoint_->timeout(); }
  uint64_t calls() const override { return endpoint_->calls(); }
  WorkPtr start(comm::Request request, WorkInfo info) override;
  WorkPtr start(comm::Request first, std::function<comm::Request()> second, WorkInfo info) override;
  std::unique_ptr<RollCall> roll_call() override;
  void fail(const std::string& kind, const std::string& text) noexcept override {
    endpoint_->fail(kind, text);
  }

  const std::shared_ptr<shm::Endpoint>& endpoint() const { return endpoint_; }

 private:
  const std::shared_ptr<shm::Endpoint> endpoint_;
};

}  // namespace lockstep::c10d_face
