// The transport for ranks on several machines: shared memory inside each machine, an engine for networks (a
// link) between the machines. docs/multi-node.md describes how a call is divided.
//
// Collectives are executed in the order in which they were started (queue.h). A rank's first error is
// published in the store, so that ranks on other machines, which share no memory with it, give up their
// waits.
//
// The local ranks' calls are compared by shared memory; those of the machines by their first ranks
// (agreement.h).
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "comm/agreement.h"
#include "comm/group.h"
#include "comm/link.h"
#include "comm/store_control.h"
#include "comm/transport.h"
#include "hybrid/machine.h"
#include "hybrid/narrow.h"
#include "hybrid/operation.h"
#include "hybrid/queue.h"
#include "hybrid/shares.h"
#include "hybrid/topology.h"

namespace lockstep::hybrid {

class Transport final : public comm::Transport, private comm::Neighbours {
 public:
  // `group` owns the transport.
  Transport(ProcessGroup::Impl& group, Topology topology, Machine::Endpoints endpoints,
            std::shared_ptr<comm::Link> link);
  ~Transport() override;

  bool averages(c10::ScalarType dtype, c10::Device device) const override;
  bool narrows(c10::ScalarType wire) const override { return narrow_to(wire) != nullptr; }
  bool supplies_memory(c10::Device device) const override { return device.is_cpu() && !machine_.alone(); }
  bool needs_owners() const override { return true; }
  size_t bucket_bytes() const override { return bucket_bytes_for(topology_); }
  uint64_t calls() const override { return calls_; }

  void run(comm::Request& request) override;
  std::shared_ptr<Work::State> start(comm::Request&& request) override;
  void fail(const Error& why) noexcept override;
  at::Tensor allocate(at::IntArrayRef sizes, const at::TensorOptions& options) override;
  bool supplied(const at::Tensor& tensor) const override;
  comm::Neighbours* neighbours() override { return this; }

  // The control channel of the same group. A rank that does not make the same calls may be waiting in it.
  void watch_control(comm::StoreControl& control) { control_ = &control; }

 private:
  class Started;

  // comm::Neighbours
  std::vector<int> ranks() const override { return topology_.local_ranks(); }
  uint64_t offset_of(const at::Tensor& memory) const override;
  at::Tensor map(int rank, uint64_t offset, int64_t bytes) override;

  Queue::EntryPtr enter(const comm::Request& request);
  std::shared_ptr<Work::State> start_message(comm::Request&& request);
  void agree(Queue::Entry& entry);
  std::exception_ptr explain(const Queue::Entry& entry) noexcept;
  void end(const Error& why) noexcept;

  ProcessGroup::Impl& group_;
  const Topology topology_;
  Machine machine_;
  std::shared_ptr<comm::Link> link_;
  Buffers buffers_;
  const std::unique_ptr<comm::Agreement> agreement_;  // of the machines' first ranks; null on the others
  comm::StoreControl* control_ = nullptr;
  std::atomic<uint64_t> calls_{0};
  std::optional<Queue> queue_;  // last, because its threads use everything above
};

}  // namespace lockstep::hybrid
