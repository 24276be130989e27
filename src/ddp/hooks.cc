#include <fmt/format.h>
#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include <lockstep/comm_hook.h>
#include <lockstep/error.h>

#include "base/error_text.h"
#include "comm/from_tensors.h"
#include "comm/generation.h"
#include "comm/group.h"
#include "comm/work.h"

namespace lockstep {

CommResult::CommResult(c10::intrusive_ptr<c10::ivalue::Future> future)
    : finish_([future = std::move(future)]() -> at::Tensor {
        future->waitAndThrow();
        const auto& value = future->constValue();
        if (value.isTensor()) return value.toTensor();
        if (value.isTensorList() && value.toTensorVector().size() == 1) return value.toTensorVector().front();
        throw UsageError(
            base::compose({.what = "the future of the communication hook does not hold a tensor",
                           .evidence = fmt::format("it holds a {}", value.tagKind()),
                           .hint = "return a future of one tensor, or of a list that contains one tensor"}));
      }) {}

namespace hooks {

namespace {

// A transport for several machines that narrows gradients only between them, where bytes cost most: the sums
// inside the machines stay exact.
std::optional<CommResult> narrow_between_machines(GradBucket& bucket, ProcessGroup& group,
                                                  at::ScalarType dtype) {
  const auto& generation = comm::generation_of(group);
  const auto whole = bucket.buffer.scalar_type();
  const bool all_take_part = bucket.mean.participants() == group.world_size();
  if (whole != at::kFloat || !all_take_part || !generation->transport->narrows(dtype)) return std::nullopt;
  auto request = comm::all_reduce_of(bucket.buffer, ReduceOp::Avg);
  request.wire = dtype;
  request.keep.push_back(bucket.buffer);
  auto work = comm::start(generation, {.request = std::move(request)});
  return [buffer = bucket.buffer, work]() mutable {
    work.wait();
    return buffer;
  };
}

// Divides first: a sum of many large gradients may exceed the range of a small type.
CommHook compress(at::ScalarType dtype) {
  return [dtype](GradBucket& bucket, ProcessGroup& group) -> CommResult {
    if (auto narrowed = narrow_between_machines(bucket, group, dtype)) return std::move(*narrowed);
    auto small = group.empty({bucket.buffer.numel()}, bucket.buffer.options().dtype(dtype));
    small.copy_(bucket.mean.divided(bucket.buffer));
    auto work = group.all_reduce_async(small);
    return [small, work]() mutable {
      work.wait();
      return small;
    };
  };
}

}  // namespace

CommHook fp16_compress() { return compress(at::kHalf); }
CommHook bf16_compress() { return compress(at::kBFloat16); }

CommHook local_sgd(int64_t start_step) {
  // Shared by the copies of the hook.
  const auto step = std::make_shared<int64_t>(0);
  return [start_step, step](GradBucket& bucket, ProcessGroup& group) -> CommResult {
    const bool local = *step >= start_step;
    if (bucket.is_last) ++*step;
    if (local) return bucket.buffer;
    auto work = group.all_reduce_async(bucket.buffer);
    return [buffer = bucket.buffer, mean = bucket.mean, work]() mutable {
      work.wait();
      return mean.divide(buffer);
    };
  };
}

}  // namespace hooks

}  // namespace lockstep
