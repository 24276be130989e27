// The public face of a group: each call goes to comm/collectives.h or, when it blocks, comm/blocking.h.
#include <ATen/ATen.h>

#include <lockstep/process_group.h>

#include "comm/blocking.h"
#include "comm/collectives.h"
#include "comm/failure.h"
#include "comm/group.h"
#include "groups/make_group.h"

namespace lockstep {

ProcessGroup::ProcessGroup(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
ProcessGroup::~ProcessGroup() = default;

int ProcessGroup::rank() const { return impl_->rank; }
int ProcessGroup::world_size() const { return impl_->world_size; }
int ProcessGroup::local_rank() const { return impl_->placement.local_rank; }
int ProcessGroup::local_world_size() const { return impl_->placement.local_world_size; }
int ProcessGroup::node_rank() const { return impl_->placement.node_rank; }
int ProcessGroup::num_nodes() const { return impl_->placement.num_nodes; }
const std::string& ProcessGroup::backend() const { return impl_->backend; }

Work ProcessGroup::all_reduce_async(const at::Tensor& tensor, ReduceOp op) {
  return comm::all_reduce(impl_, tensor, op);
}
Work ProcessGroup::broadcast_async(const at::Tensor& tensor, int root) {
  return comm::broadcast(impl_, tensor, root);
}
Work ProcessGroup::reduce_async(const at::Tensor& tensor, int root, ReduceOp op) {
  return comm::reduce(impl_, tensor, root, op);
}
Work ProcessGroup::all_gather_async(const at::Tensor& tensor) { return comm::all_gather(impl_, tensor); }
Work ProcessGroup::all_gather_into_tensor_async(const at::Tensor& output, const at::Tensor& input) {
  return comm::all_gather_into_tensor(impl_, output, input);
}
Work ProcessGroup::reduce_scatter_tensor_async(const at::Tensor& output, const at::Tensor& input,
                                               ReduceOp op) {
  return comm::reduce_scatter_tensor(impl_, output, input, op);
}
Work ProcessGroup::gather_async(const at::Tensor& tensor, int root) {
  return comm::gather(impl_, tensor, root);
}
Work ProcessGroup::scatter_async(const at::Tensor& output, const std::vector<at::Tensor>& inputs, int root) {
  return comm::scatter(impl_, output, inputs, root);
}
Work ProcessGroup::all_to_all_single_async(const at::Tensor& output, const at::Tensor& input) {
  return comm::all_to_all_single(impl_, output, input);
}
Work ProcessGroup::send_async(const at::Tensor& tensor, int to, int tag) {
  return comm::send(impl_, tensor, to, tag);
}
Work ProcessGroup::recv_async(const at::Tensor& tensor, int from, int tag) {
  return comm::recv(impl_, tensor, from, tag);
}
Work ProcessGroup::barrier_async() { return comm::barrier(impl_); }

// A blocking call needs no Work where the backend is our own.
void ProcessGroup::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  if (!comm::all_reduce_now(*impl_, tensor, op)) all_reduce_async(tensor, op).wait();
}
void ProcessGroup::broadcast(const at::Tensor& tensor, int root) {
  if (!comm::broadcast_now(*impl_, tensor, root)) broadcast_async(tensor, root).wait();
}
void ProcessGroup::reduce(const at::Tensor& tensor, int root, ReduceOp op) {
  reduce_async(tensor, root, op).wait();
}
std::vector<at::Tensor> ProcessGroup::all_gather(const at::Tensor& tensor) {
  return all_gather_async(tensor).result();
}
void ProcessGroup::all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input) {
  if (!comm::all_gather_now(*impl_, output, input)) all_gather_into_tensor_async(output, input).wait();
}
void ProcessGroup::reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input, ReduceOp op) {
  if (!comm::reduce_scatter_now(*impl_, output, input, op))
    reduce_scatter_tensor_async(output, input, op).wait();
}
std::vector<at::Tensor> ProcessGroup::gather(const at::Tensor& tensor, int root) {
  return gather_async(tensor, root).result();
}
void ProcessGroup::scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs, int root) {
  scatter_async(output, inputs, root).wait();
}
void ProcessGroup::all_to_all_single(const at::Tensor& output, const at::Tensor& input) {
  all_to_all_single_async(output, input).wait();
}
void ProcessGroup::send(const at::Tensor& tensor, int to, int tag) { send_async(tensor, to, tag).wait(); }
void ProcessGroup::recv(const at::Tensor& tensor, int from, int tag) { recv_async(tensor, from, tag).wait(); }
void ProcessGroup::barrier() {
  if (!comm::barrier_now(*impl_)) barrier_async().wait();
}

void ProcessGroup::poison(const Error& why) { comm::poison(*impl_, why); }

at::Tensor ProcessGroup::empty(at::IntArrayRef sizes, at::TensorOptions options) {
  return impl_->native != nullptr ? impl_->native->empty(sizes, options) : at::empty(sizes, options);
}

std::shared_ptr<ProcessGroup> ProcessGroup::new_group(const std::vector<int>& ranks) {
  return groups::make_subgroup(*impl_, ranks);
}

c10::intrusive_ptr<c10d_backend> ProcessGroup::c10d() const { return groups::c10d_of(*impl_); }

}  // namespace lockstep
