// The shared-memory engine as a c10d backend: for Python, and for C++ that uses LibTorch's process groups.
#pragma once

#include <lockstep/c10d.h>

#include "shm/endpoint.h"

namespace lockstep::shm_c10d {

// Arguments are checked as in LibTorch's Gloo backend, with the same messages (compat::ArgumentError).
class Backend : public c10d_backend {
 public:
  // Becomes an owner of the endpoint; the destructor calls its retire(). `kept` exists as long as the
  // backend.
  explicit Backend(std::shared_ptr<shm::Endpoint> endpoint, std::shared_ptr<const void> kept = nullptr);
  ~Backend() override;

  const std::string getBackendName() const override { return "shm"; }
  void setSequenceNumberForGroup() override {}  // all ranks count from 0
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

  const std::shared_ptr<shm::Endpoint>& endpoint() const { return endpoint_; }

 private:
  WorkPtr sparse_allreduce(const List& tensors, const c10d::AllreduceOptions& options);

  const std::shared_ptr<shm::Endpoint> endpoint_;
  const std::shared_ptr<const void> kept_;
};

}  // namespace lockstep::shm_c10d
