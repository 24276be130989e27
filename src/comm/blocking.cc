#include "comm/blocking.h"

#include <ATen/core/Tensor.h>

#include "comm/checks.h"
#include "comm/dense.h"
#include "comm/failure.h"
#include "comm/gaps.h"

namespace lockstep::comm {

namespace {

// Overlapping input and output go the long way, too, which knows what to do.
bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.device().is_cpu() && is_dense(tensor);
}

template <class Native>
bool done(ProcessGroup::Impl& group, const char* what, Native&& native) {
  try {
    native(*group.native);
  } catch (...) {
    throw_failure(group, {.number = 0, .what = what});
  }
  return true;
}

}  // namespace

bool all_reduce_now(ProcessGroup::Impl& group, const at::Tensor& tensor, ReduceOp op) {
  if (group.native == nullptr || !is_plain(tensor)) return false;
  check_reduction(op, tensor.scalar_type());
  return done(group, "all_reduce", [&](Native& native) { native.all_reduce_now(tensor, op); });
}

bool broadcast_now(ProcessGroup::Impl& group, const at::Tensor& tensor, int root) {
  if (group.native == nullptr || !is_plain(tensor)) return false;
  check_rank(group, "broadcast", root);
  return done(group, "broadcast", [&](Native& native) { native.broadcast_now(tensor, root); });
}

bool all_gather_now(ProcessGroup::Impl& group, const at::Tensor& output, const at::Tensor& input) {
  if (group.native == nullptr || !is_plain(output) || !is_plain(input) || overlap(output, input))
    return false;
  check_parts(group, "all_gather_into_tensor", output, input);
  return done(group, "all_gather_into_tensor", [&](Native& native) { native.all_gather_now(output, input); });
}

bool reduce_scatter_now(ProcessGroup::Impl& group, const at::Tensor& output, const at::Tensor& input,
                        ReduceOp op) {
  if (group.native == nullptr || !is_plain(output) || !is_plain(input) || overlap(output, input))
    return false;
  check_parts(group, "reduce_scatter_tensor", input, output);
  check_reduction(op, input.scalar_type());
  return done(group, "reduce_scatter_tensor",
              [&](Native& native) { native.reduce_scatter_now(output, input, op); });
}

bool barrier_now(ProcessGroup::Impl& group) {
  if (group.native == nullptr) return false;
  return done(group, "barrier", [](Native& native) { native.barrier_now(); });
}

}  // namespace lockstep::comm
