#include "comm/checks.h"

#include <fmt/format.h>

#include <ATen/MemoryOverlap.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "comm/wire_tags.h"

namespace lockstep::comm {

namespace {

void check_same_device(const ProcessGroup::Impl& group, const char* name, const at::Tensor& a,
                       const at::Tensor& b) {
  if (a.device() == b.device()) return;
  refuse(group, name,
         fmt::format("its tensors are on different devices: {} and {}", a.device().str(), b.device().str()),
         "move one of them");
}

}  // namespace

void refuse(const ProcessGroup::Impl& group, const char* name, const std::string& evidence,
            const std::string& hint) {
  throw UsageError(
      base::compose({.what = fmt::format("{} cannot be done", name),
                     .where = fmt::format("rank {}/{}, {}", group.rank, group.world_size, group.name),
                     .evidence = evidence,
                     .hint = hint}));
}

DeviceRefusal refusal_of(const ProcessGroup::Impl& group, c10::Device device) {
  const auto& own = group.device;
  if (device.type() == own.type() && !own.is_cpu()) {
    return {fmt::format("the device of this rank is {}", own.str()),
            "use the device that group->device() returns: module->to(group->device())"};
  }
  const auto evidence = fmt::format("backend {} does not support this device", group.backend);
  if (device.is_cuda() && !group.no_cuda.evidence.empty()) {
    return {fmt::format("{}: {}", evidence, group.no_cuda.evidence),
            fmt::format("{}; or use the CPU", group.no_cuda.hint)};
  }
  return {evidence, group.transport->carries(c10::kCPU) ? "move it to the CPU first"
                                                        : fmt::format("move it to {} first", own.str())};
}

void check_tensor(const ProcessGroup::Impl& group, const char* name, const at::Tensor& tensor) {
  if (!tensor.defined()) refuse(group, name, "a tensor is undefined", "give it a value first");
  if (tensor.layout() != at::kStrided) refuse(group, name, "a tensor is sparse", "call to_dense() first");
  const auto device = tensor.device();
  if (!group.transport->carries(device)) {
    const auto refusal = refusal_of(group, device);
    refuse(group, name, fmt::format("a tensor is on {}, and {}", device.str(), refusal.evidence),
           refusal.hint);
  }
}

void check_target(const ProcessGroup::Impl& group, const char* name, const at::Tensor& tensor) {
  check_tensor(group, name, tensor);
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    refuse(group, name, "elements of the tensor share memory", "call contiguous() first");
  }
}

void check_rank(const ProcessGroup::Impl& group, const char* name, int rank) {
  if (rank >= 0 && rank < group.world_size) return;
  refuse(group, name, fmt::format("there is no rank {}", rank),
         fmt::format("ranks go from 0 to {}", group.world_size - 1));
}

void check_peer(const ProcessGroup::Impl& group, const char* name, int peer, int tag) {
  check_rank(group, name, peer);
  if (peer == group.rank) refuse(group, name, "the peer is this rank itself", "name another rank");
  if (tag < 0 || tag > kLargestUserTag) {
    refuse(group, name, fmt::format("the tag is {}", tag),
           fmt::format("tags go from 0 to {}", kLargestUserTag));
  }
}

void check_reduction(ReduceOp op, at::ScalarType dtype) {
  const bool integral = at::isIntegralType(dtype, /*includeBool=*/true);
  const bool bitwise = op == ReduceOp::Band || op == ReduceOp::Bor || op == ReduceOp::Bxor;
  const char* wanted = nullptr;
  if (op == ReduceOp::Avg && integral) wanted = "floating-point or complex tensors, or sum and divide";
  if (bitwise && !integral) wanted = "integer or boolean tensors";
  if ((op == ReduceOp::Min || op == ReduceOp::Max) && at::isComplexType(dtype)) {
    wanted = "real tensors: complex numbers have no order";
  }
  if (wanted == nullptr) return;
  throw UsageError(base::compose(
      {.what = fmt::format("{} is not defined for {} tensors", name_of(op), c10::toString(dtype)),
       .hint = fmt::format("use {}", wanted)}));
}

void check_parts(const ProcessGroup::Impl& group, const char* name, const at::Tensor& large,
                 const at::Tensor& small) {
  check_tensor(group, name, large);
  check_tensor(group, name, small);
  check_sizes(group, name, large, small);
}

void check_sizes(const ProcessGroup::Impl& group, const char* name, const at::Tensor& large,
                 const at::Tensor& small) {
  if (large.scalar_type() != small.scalar_type()) {
    refuse(group, name,
           fmt::format("input and output differ in dtype: {} and {}", c10::toString(large.scalar_type()),
                       c10::toString(small.scalar_type())),
           "convert one of them");
  }
  check_same_device(group, name, large, small);
  if (large.numel() != small.numel() * group.world_size) {
    refuse(group, name,
           fmt::format("the larger tensor has {} elements, the smaller {}", large.numel(), small.numel()),
           fmt::format("the larger one must have {} times as many", group.world_size));
  }
}

void check_alike(const ProcessGroup::Impl& group, const char* name, const at::Tensor& output,
                 const at::Tensor& input) {
  check_same_device(group, name, input, output);
  if (input.numel() == output.numel() && input.scalar_type() == output.scalar_type()) return;
  refuse(group, name,
         fmt::format("an input has {} {} elements, the output {} {}", input.numel(),
                     c10::toString(input.scalar_type()), output.numel(), c10::toString(output.scalar_type())),
         "give both the same number of elements and the same dtype");
}

}  // namespace lockstep::comm
