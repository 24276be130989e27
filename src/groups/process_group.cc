// The public interface of a group: every call is described (comm/collectives.h) and run or started
// (comm/work.h).
#include <ATen/ATen.h>

#include <lockstep/process_group.h>

#include "comm/collectives.h"
#include "comm/failure.h"
#include "comm/group.h"
#include "groups/make_group.h"

namespace lockstep {

using comm::Returns;

ProcessGroup::ProcessGroup(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
ProcessGroup::~ProcessGroup() = default;

int ProcessGroup::rank() const { return impl_->rank; }
int ProcessGroup::world_size() const { return impl_->world_size; }
int ProcessGroup::local_rank() const { return impl_->placement.local_rank; }
int ProcessGroup::local_world_size() const { return impl_->placement.local_world_size; }
int ProcessGroup::node_rank() const { return impl_->placement.node_rank; }
int ProcessGroup::num_nodes() const { return impl_->placement.num_nodes; }
const std::string& ProcessGroup::backend() const { return impl_->backend; }
at::Device ProcessGroup::device() const { return impl_->device; }

void ProcessGroup::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  auto call = comm::all_reduce(*impl_, impl_->blocking, tensor, op);
  comm::run(*impl_, call);
}
void ProcessGroup::broadcast(const at::Tensor& tensor, int root) {
  auto call = comm::broadcast(*impl_, impl_->blocking, tensor, root);
  comm::run(*impl_, call);
}
void ProcessGroup::reduce(const at::Tensor& tensor, int root, ReduceOp op) {
  auto call = comm::reduce(*impl_, impl_->blocking, tensor, root, op);
  comm::run(*impl_, call);
}
std::vector<at::Tensor> ProcessGroup::all_gather(const at::Tensor& tensor) {
  auto call = comm::all_gather(*impl_, impl_->blocking, tensor);
  comm::run(*impl_, call);
  return call.results ? std::move(call.results->made) : std::vector<at::Tensor>{};
}
void ProcessGroup::all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input) {
  auto call = comm::all_gather_into_tensor(*impl_, impl_->blocking, output, input);
  comm::run(*impl_, call);
}
void ProcessGroup::reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input, ReduceOp op) {
  auto call = comm::reduce_scatter_tensor(*impl_, impl_->blocking, output, input, op);
  comm::run(*impl_, call);
}
std::vector<at::Tensor> ProcessGroup::gather(const at::Tensor& tensor, int root) {
  auto call = comm::gather(*impl_, impl_->blocking, tensor, root);
  comm::run(*impl_, call);
  return call.results ? std::move(call.results->made) : std::vector<at::Tensor>{};
}
void ProcessGroup::scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs, int root) {
  auto call = comm::scatter(*impl_, impl_->blocking, output, inputs, root);
  comm::run(*impl_, call);
}
void ProcessGroup::all_to_all_single(const at::Tensor& output, const at::Tensor& input) {
  auto call = comm::all_to_all_single(*impl_, impl_->blocking, output, input);
  comm::run(*impl_, call);
}
void ProcessGroup::send(const at::Tensor& tensor, int to, int tag) {
  auto call = comm::send(*impl_, impl_->blocking, tensor, to, tag);
  comm::run(*impl_, call);
}
void ProcessGroup::recv(const at::Tensor& tensor, int from, int tag) {
  auto call = comm::recv(*impl_, impl_->blocking, tensor, from, tag);
  comm::run(*impl_, call);
}
void ProcessGroup::barrier() {
  comm::Request barrier;
  comm::run(*impl_, barrier);
}

Work ProcessGroup::all_reduce_async(const at::Tensor& tensor, ReduceOp op) {
  return comm::start(impl_, comm::all_reduce(*impl_, Returns::AtOnce, tensor, op));
}
Work ProcessGroup::broadcast_async(const at::Tensor& tensor, int root) {
  return comm::start(impl_, comm::broadcast(*impl_, Returns::AtOnce, tensor, root));
}
Work ProcessGroup::reduce_async(const at::Tensor& tensor, int root, ReduceOp op) {
  return comm::start(impl_, comm::reduce(*impl_, Returns::AtOnce, tensor, root, op));
}
Work ProcessGroup::all_gather_async(const at::Tensor& tensor) {
  return comm::start(impl_, comm::all_gather(*impl_, Returns::AtOnce, tensor));
}
Work ProcessGroup::all_gather_into_tensor_async(const at::Tensor& output, const at::Tensor& input) {
  return comm::start(impl_, comm::all_gather_into_tensor(*impl_, Returns::AtOnce, output, input));
}
Work ProcessGroup::reduce_scatter_tensor_async(const at::Tensor& output, const at::Tensor& input,
                                               ReduceOp op) {
  return comm::start(impl_, comm::reduce_scatter_tensor(*impl_, Returns::AtOnce, output, input, op));
}
Work ProcessGroup::gather_async(const at::Tensor& tensor, int root) {
  return comm::start(impl_, comm::gather(*impl_, Returns::AtOnce, tensor, root));
}
Work ProcessGroup::scatter_async(const at::Tensor& output, const std::vector<at::Tensor>& inputs, int root) {
  return comm::start(impl_, comm::scatter(*impl_, Returns::AtOnce, output, inputs, root));
}
Work ProcessGroup::all_to_all_single_async(const at::Tensor& output, const at::Tensor& input) {
  return comm::start(impl_, comm::all_to_all_single(*impl_, Returns::AtOnce, output, input));
}
Work ProcessGroup::send_async(const at::Tensor& tensor, int to, int tag) {
  return comm::start(impl_, comm::send(*impl_, Returns::AtOnce, tensor, to, tag));
}
Work ProcessGroup::recv_async(const at::Tensor& tensor, int from, int tag) {
  return comm::start(impl_, comm::recv(*impl_, Returns::AtOnce, tensor, from, tag));
}
Work ProcessGroup::barrier_async() { return comm::start(impl_, comm::barrier()); }

void ProcessGroup::poison(const Error& why) { comm::end_group(*impl_, why); }

at::Tensor ProcessGroup::empty(at::IntArrayRef sizes, at::TensorOptions options) {
  return impl_->transport->allocate(sizes, options);
}

std::shared_ptr<ProcessGroup> ProcessGroup::new_group(const std::vector<int>& ranks) {
  return groups::make_subgroup(*impl_, ranks);
}

c10::intrusive_ptr<c10d_backend> ProcessGroup::c10d() const { return groups::c10d_of(impl_); }

}  // namespace lockstep
