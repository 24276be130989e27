// The shared-memory engine as a c10d backend, and as the backend of lockstep's own groups.
#pragma once

#include <lockstep/c10d.h>

#include "comm/native.h"
#include "shm/endpoint.h"

namespace lockstep::shm {

// Arguments are checked as LibTorch's Gloo backend checks them, with the same words: compat::ArgumentError.
class Backend : public c10d_backend, public comm::Native {
 public:
  explicit Backend(std::shared_ptr<Endpoint> endpoint);
  ~Backend() override;

  const std::string getBackendName() const override { return "shm"; }
  void setSequenceNumberForGroup() override {}  // all ranks count from the beginning
  uint64_t getSequenceNumberForGroup() override { return endpoint_->calls(); }

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using List = std::vector<at::Tensor>;
  using Lists = std::vector<List>;

  WorkPtr broadcast(List& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(List& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(List& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(List& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(Lists& outputs, List& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(Lists& outputs, List& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr gather(Lists& outputs, List& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(List& outputs, Lists& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(List& outputs, Lists& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(List& outputs, List& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr send(List& tensors, int to, int tag) override;
  WorkPtr recv(List& tensors, int from, int tag) override;
  WorkPtr recvAnysource(List& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // comm::Native
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) override;
  void all_reduce_now(const at::Tensor& tensor, ReduceOp op) override;
  void broadcast_now(const at::Tensor& tensor, int root) override;
  void all_gather_now(const at::Tensor& output, const at::Tensor& input) override;
  void reduce_scatter_now(const at::Tensor& output, const at::Tensor& input, ReduceOp op) override;
  void barrier_now() override;
  void fail(const std::string& kind, const std::string& text) override { endpoint_->poison(kind, text); }

 private:
  WorkPtr sparse_allreduce(const List& tensors, const c10d::AllreduceOptions& options);

  const std::shared_ptr<Endpoint> endpoint_;
};

}  // namespace lockstep::shm
