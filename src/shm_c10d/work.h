// c10d's handle of a call or message of an endpoint.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "shm/endpoint.h"

namespace lockstep::shm_c10d {

// What there is to a call besides the engine's part of it.
struct Outline {
  const char* title;  // "shm:all_reduce", for the profiler
  c10d::OpType type;
  std::vector<at::Tensor> inputs;                // shown to the profiler
  std::vector<std::vector<at::Tensor>> outputs;  // what result() and the future give
  std::vector<at::Tensor> travelling = {};       // kept alive meanwhile
  std::function<void()> finish = {};             // brings what travelled into the caller's tensors
};

class Work : public c10d::Work, private shm::Completion {
 public:
  static c10::intrusive_ptr<Work> start(std::shared_ptr<shm::Endpoint> endpoint, comm::Request request,
                                        Outline outline, std::chrono::milliseconds timeout);
  // Two collectives, of which the second depends on the results of the first.
  static c10::intrusive_ptr<Work> start(std::shared_ptr<shm::Endpoint> endpoint, comm::Request first,
                                        std::function<comm::Request()> second, Outline outline,
                                        std::chrono::milliseconds timeout);
  static c10::intrusive_ptr<Work> send(std::shared_ptr<shm::Endpoint> endpoint, const at::Tensor& tensor,
                                       int to, int tag);
  static c10::intrusive_ptr<Work> receive(std::shared_ptr<shm::Endpoint> endpoint, const at::Tensor& tensor,
                                          int from, int tag);  // a tensor of any strides

  bool isCompleted() override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override {}
  // Helps to do the work. A timeout of this wait is not one of the call, which goes on.
  bool wait(std::chrono::milliseconds timeout) override;
  // Makes the wait that is under way, or the next one, return false. The call itself goes on, as with Gloo: a
  // rank alone cannot take back what the others have seen.
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  Work(std::shared_ptr<shm::Endpoint> endpoint, Outline outline);

 private:
  void completed() noexcept override;
  void conclude() noexcept override;
  shm::Operation& operation();
  void start_message(comm::Request request, const at::Tensor& tensor);
  void start_call(std::chrono::milliseconds timeout);
  c10::IValue value() const;
  void settle_future();
  void run_callbacks() noexcept;

  const std::shared_ptr<shm::Endpoint> endpoint_;
  Outline outline_;
  // One of three: a message, a call, or a call and one before it.
  comm::Request first_request_, request_;
  std::optional<shm::Call> first_, call_;
  std::optional<shm::Message> message_;
  // From the start until it is complete, the engine holds on to it.
  c10::intrusive_ptr<Work> self_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool future_settled_ = false;
  std::exception_ptr outcome_;
};

}  // namespace lockstep::shm_c10d
