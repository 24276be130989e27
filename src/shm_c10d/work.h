// c10d's handle of an operation (a call or a message) of an endpoint.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "shm/endpoint.h"

namespace lockstep::shm_c10d {

// What c10d needs to know about an operation, in addition to the engine's request.
struct WorkInfo {
  const char* title;  // "shm:all_reduce", for the profiler
  c10d::OpType type;
  std::vector<at::Tensor> inputs;                // for the profiler
  std::vector<std::vector<at::Tensor>> outputs;  // what result() and the future return
  std::vector<at::Tensor> keep_alive = {};       // buffers that must exist until it is complete
  std::function<void()> finish = {};             // copies results from these buffers to the caller's tensors
};

class Work : public c10d::Work, private shm::Completion {
 public:
  static c10::intrusive_ptr<Work> start(std::shared_ptr<shm::Endpoint> endpoint, comm::Request request,
                                        WorkInfo info, std::chrono::milliseconds timeout);
  // Two calls; the request of the second depends on the results of the first.
  static c10::intrusive_ptr<Work> start(std::shared_ptr<shm::Endpoint> endpoint, comm::Request first,
                                        std::function<comm::Request()> second, WorkInfo info,
                                        std::chrono::milliseconds timeout);
  static c10::intrusive_ptr<Work> send(std::shared_ptr<shm::Endpoint> endpoint, const at::Tensor& tensor,
                                       int to, int tag);
  static c10::intrusive_ptr<Work> receive(std::shared_ptr<shm::Endpoint> endpoint, const at::Tensor& tensor,
                                          int from, int tag);  // the tensor may have any strides

  bool isCompleted() override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override {}
  // Advances the operation meanwhile. If the timeout of this wait expires, the operation continues.
  bool wait(std::chrono::milliseconds timeout) override;
  // Makes the current wait, or else the next one, return false. The operation itself continues, as with Gloo,
  // because a single rank cannot cancel what the other ranks have already seen.
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  Work(std::shared_ptr<shm::Endpoint> endpoint, WorkInfo info);

 private:
  void completed() noexcept override;
  void conclude() noexcept override;
  shm::Operation& operation();
  void start_message(comm::Request request, const at::Tensor& tensor);
  void start_call(std::chrono::milliseconds timeout);
  c10::IValue value() const;
  void complete_future();
  void run_callbacks() noexcept;
  void release_memory() noexcept;

  const std::shared_ptr<shm::Endpoint> endpoint_;
  WorkInfo info_;
  // Either message_, or call_, or call_ with its predecessor first_.
  comm::Request first_request_, request_;
  std::optional<shm::Call> first_, call_;
  std::optional<shm::Message> message_;
  // Set while the engine refers to this object: from the start until the operation is complete.
  c10::intrusive_ptr<Work> self_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool future_completed_ = false;
  std::exception_ptr error_;
};

}  // namespace lockstep::shm_c10d
