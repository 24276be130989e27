// lockstep's engines as a c10d backend: for Python, and for C++ that uses LibTorch's process groups.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "c10d_face/engine.h"
#include "compat/backend.h"

namespace lockstep::c10d_face {

// Arguments are checked as in LibTorch's Gloo backend, with the same messages (c10::Error).
class Backend : public compat::Backend {
 public:
  // Connects this rank with the other ones of another generation, which meet at this place in the store.
  // Blocks until all are connected; throws at the deadline.
  using Connect = std::function<std::unique_ptr<Engine>(const std::string& place, int rank, int world_size,
                                                        base::Deadline deadline)>;

  // Does not wait when it is destroyed: operations under way continue. `connect`, with what it holds, exists
  // as long as the backend; without it, reconfigure() is not supported.
  explicit Backend(std::unique_ptr<Engine> engine, Connect connect = {});

  const std::string getBackendName() const override { return engine_->name(); }
  void setSequenceNumberForGroup() override {}  // all ranks count from 0
  uint64_t getSequenceNumberForGroup() override { return engine_->calls(); }

  using WorkPtr = c10d_face::WorkPtr;
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

  // c10d's reconfigure (reconfigure.cc). The next generation has an engine of its own; the works of this one
  // continue. No other thread may use the backend meanwhile. If it throws, the backend is as it was before.
  bool can_change_members() const override { return connect_ != nullptr; }
  std::string handle() const override { return handle_; }
  WorkPtr change_members(const compat::NextMembers& next) override;

  const Engine& engine() const { return *engine_; }

 private:
  // Without its own timeout, a call uses that of the group: a negative value in c10d, 0 in the engine.
  WorkPtr start(comm::Request request, WorkInfo info, std::chrono::milliseconds timeout);
  WorkPtr receive(const at::Tensor& tensor, int from, int tag, c10d::OpType type);
  WorkPtr sparse_allreduce(const List& tensors, const c10d::AllreduceOptions& options);
  WorkPtr gather_of_one(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) override;

  std::unique_ptr<Engine> engine_;  // of the current generation
  const Connect connect_;
  const std::string handle_;
  std::set<int64_t> used_uuids_;
};

}  // namespace lockstep::c10d_face
