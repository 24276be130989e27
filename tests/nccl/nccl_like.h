// A stand-in for LibTorch's NCCL backend, over Gloo and tensors on the CPU. It takes what NCCL takes, throws
// for the rest, and its waits return at once although the "device" may not have executed the call.
#pragma once

#include <atomic>
#include <chrono>
#include <gtest/gtest.h>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/c10d.h>

#include "base/deadline.h"
#include "comm/generation.h"
#include "comm/group.h"
#include "gloo/make_gloo.h"
#include "nccl/transport.h"

namespace lockstep::testing {

// What happened to a backend and its device.
struct Seen {
  std::atomic<bool> device_is_done{true};
  std::atomic<int> connected{0}, aborted{0}, closed{0}, marked{0};
  std::vector<std::string> calls;
  std::vector<at::Tensor> tensors;  // of the last call
};
using SeenPtr = std::shared_ptr<Seen>;

class NcclLike : public c10d_backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  NcclLike(c10::intrusive_ptr<c10d_backend> gloo, SeenPtr seen)
      : c10d_backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)), seen_(std::move(seen)) {}

  const std::string getBackendName() const override { return "nccl-like"; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    note("allreduce", tensors, options.reduceOp);
    auto sum = options;
    const bool divides = is_average(sum.reduceOp);
    if (divides) sum.reduceOp = c10d::ReduceOp::SUM;
    gloo_->allreduce(tensors, sum)->wait();
    if (divides) tensors[0].div_(getSize());
    return queued();
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    note("reduce", tensors, options.reduceOp);
    gloo_->reduce(tensors, options)->wait();
    return queued();
  }
  // LibTorch 1.13's Gloo has none.
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    note("reduce_scatter", inputs[0], options.reduceOp);
    for (auto& part : inputs[0]) {
      Tensors copy{part.clone()};
      c10d::AllreduceOptions sum;
      if (!is_average(options.reduceOp)) sum.reduceOp = options.reduceOp;
      gloo_->allreduce(copy, sum)->wait();
      if (&part == &inputs[0][getRank()]) outputs[0].copy_(copy[0]);
    }
    if (is_average(options.reduceOp)) outputs[0].div_(getSize());
    return queued();
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    note("broadcast", tensors);
    gloo_->broadcast(tensors, options)->wait();
    return queued();
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    note("allgather", inputs);
    gloo_->allgather(outputs, inputs, options)->wait();
    return queued();
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    note("gather", inputs);
    gloo_->gather(outputs, inputs, options)->wait();
    return queued();
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override {
    note("scatter", outputs);
    gloo_->scatter(outputs, inputs, options)->wait();
    return queued();
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_parts,
                        std::vector<int64_t>& input_parts, const c10d::AllToAllOptions& options) override {
    note("alltoall_base", {input});
    gloo_->alltoall_base(output, input, output_parts, input_parts, options)->wait();
    return queued();
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    note("send", tensors);
    gloo_->send(tensors, to, tag)->wait();
    return queued();
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    note("recv", tensors);
    gloo_->recv(tensors, from, tag)->wait();
    return queued();
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    note("barrier", {});
    gloo_->barrier(options)->wait();
    return queued();
  }

 private:
  // Queued on the device.
  class Queued : public c10d::Work {
   public:
    explicit Queued(SeenPtr seen) : seen_(std::move(seen)) {}
    bool wait(std::chrono::milliseconds timeout) override {
      // NCCL's work would block the host, and abort the communicator at the end of the time.
      if (timeout != kNoTimeout) throw std::runtime_error("a timeout was passed");
      return true;
    }
    bool isCompleted() override { return seen_->device_is_done; }

   private:
    const SeenPtr seen_;
  };

  static bool is_average(const c10d::ReduceOp& op) { return op == c10d::ReduceOp::AVG; }

  WorkPtr queued() const { return c10::make_intrusive<Queued>(seen_); }

  void note(const char* call, const Tensors& tensors) {
    seen_->calls.emplace_back(call);
    seen_->tensors = tensors;
    for (const auto& tensor : tensors) {
      if (!tensor.is_contiguous()) throw std::runtime_error("not contiguous");
    }
  }
  void note(const char* call, const Tensors& tensors, const c10d::ReduceOp& op) {
    note(call, tensors);
    for (const auto refused : {c10d::ReduceOp::BAND, c10d::ReduceOp::BOR, c10d::ReduceOp::BXOR}) {
      if (op == refused) throw std::runtime_error("NCCL has no such operation");
    }
    for (const auto& tensor : tensors) {
      if (tensor.is_complex() || tensor.scalar_type() == at::kShort) {
        throw std::runtime_error("NCCL has no such type");
      }
    }
  }

  const c10::intrusive_ptr<c10d_backend> gloo_;
  const SeenPtr seen_;
};

inline nccl::Engine nccl_like_engine(const ProcessGroup::Impl& group, SeenPtr seen) {
  const auto connect = [&group, seen]() -> c10::intrusive_ptr<c10d_backend> {
    ++seen->connected;
    const auto store = group.store->under("nccl-like");
    return c10::make_intrusive<NcclLike>(
        gloo::make_gloo(store, group.rank, group.world_size, group.timeout, {"127.0.0.1"}), seen);
  };
  return {.connect = connect,
          .abort = [seen](c10d_backend&) { ++seen->aborted; },
          .close = [seen](c10d_backend&) { ++seen->closed; },
          .mark =
              [seen] {
                ++seen->marked;
                return std::function<bool()>([seen] { return seen->device_is_done.load(); });
              }};
}

// A group of all ranks whose tensors on the CPU go over the stand-in, as if they were on a device. Its
// control channel is that of `parent`'s backend. All ranks must call it.
struct NcclLikeGroup {
  explicit NcclLikeGroup(ProcessGroup& parent) {
    std::vector<int> everybody(parent.world_size());
    std::iota(everybody.begin(), everybody.end(), 0);
    group = parent.new_group(everybody);
    auto& impl = *comm::generation_of(*group);
    host = std::move(impl.transport);
    impl.backend = "nccl-like";
    impl.blocking = comm::Returns::AtOnce;  // as for tensors on a device
    impl.transport =
        std::make_shared<nccl::Transport>(impl, c10::Device(c10::kCPU), nccl_like_engine(impl, seen));
  }

  const SeenPtr seen = std::make_shared<Seen>();
  std::shared_ptr<comm::Transport> host;  // keeps the control channel
  std::shared_ptr<ProcessGroup> group;
};

}  // namespace lockstep::testing
