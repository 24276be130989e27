// The engine as the backend of lockstep's own groups: registered memory, and blocking calls that need no
// Work.
#include <ATen/ATen.h>

#include "shm/backend.h"
#include "shm/requests.h"

namespace lockstep::shm {

namespace {

Combine combine_of(ReduceOp op) { return static_cast<Combine>(op); }
static_assert(static_cast<int>(ReduceOp::Sum) == static_cast<int>(Combine::Sum) &&
              static_cast<int>(ReduceOp::Bxor) == static_cast<int>(Combine::Bxor));

}  // namespace

at::Tensor Backend::empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  if (!options.device().is_cpu() || options.layout() != at::kStrided) return at::empty(sizes, options);
  const auto block = endpoint_->arena()->allocate(c10::multiply_integers(sizes) * c10::elementSize(dtype));
  return at::from_blob(
      block.data, sizes, [arena = endpoint_->arena(), offset = block.offset](void*) { arena->free(offset); },
      at::TensorOptions().dtype(dtype).requires_grad(options.requires_grad()));
}

void Backend::all_reduce_now(const at::Tensor& tensor, ReduceOp op) {
  Call call([&] { return all_reduce_of(tensor, combine_of(op)); });
  endpoint_->run(call);
}

void Backend::broadcast_now(const at::Tensor& tensor, int root) {
  Call call([&] { return broadcast_of(tensor, root, rank_); });
  endpoint_->run(call);
}

void Backend::all_gather_now(const at::Tensor& output, const at::Tensor& input) {
  Call call([&] { return all_gather_of({output}, input, size_); });
  endpoint_->run(call);
}

void Backend::reduce_scatter_now(const at::Tensor& output, const at::Tensor& input, ReduceOp op) {
  Call call([&] { return reduce_scatter_of(output, {input}, combine_of(op), size_); });
  endpoint_->run(call);
}

void Backend::barrier_now() {
  Call call;
  endpoint_->run(call);
}

}  // namespace lockstep::shm
