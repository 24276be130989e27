// c10d's calls, each with its options in one line. The lists are passed by value on purpose: a backend must
// keep what it needs of them.
#pragma once

#include <vector>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <lockstep/c10d.h>
#include <lockstep/process_group.h>

namespace lockstep::testing {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<std::vector<at::Tensor>>;
using Splits = std::vector<int64_t>;

inline c10d::ReduceOp to_c10d(ReduceOp op) {
  static const std::vector<c10d::ReduceOp::RedOpType> types = {
      c10d::ReduceOp::SUM, c10d::ReduceOp::AVG,  c10d::ReduceOp::PRODUCT, c10d::ReduceOp::MIN,
      c10d::ReduceOp::MAX, c10d::ReduceOp::BAND, c10d::ReduceOp::BOR,     c10d::ReduceOp::BXOR};
  return c10d::ReduceOp(types.at(static_cast<size_t>(op)));
}

inline WorkPtr broadcast(c10d_backend& backend, Tensors tensors, int root_rank = 0, int root_tensor = 0) {
  c10d::BroadcastOptions options;
  options.rootRank = root_rank;
  options.rootTensor = root_tensor;
  return backend.broadcast(tensors, options);
}

inline WorkPtr all_reduce(c10d_backend& backend, Tensors tensors, ReduceOp op = ReduceOp::Sum) {
  c10d::AllreduceOptions options;
  options.reduceOp = to_c10d(op);
  return backend.allreduce(tensors, options);
}

inline WorkPtr all_reduce_coalesced(c10d_backend& backend, Tensors tensors, ReduceOp op = ReduceOp::Sum) {
  c10d::AllreduceCoalescedOptions options;
  options.reduceOp = to_c10d(op);
  return backend.allreduce_coalesced(tensors, options);
}

inline WorkPtr reduce(c10d_backend& backend, Tensors tensors, int root_rank, ReduceOp op = ReduceOp::Sum,
                      int root_tensor = 0) {
  c10d::ReduceOptions options;
  options.reduceOp = to_c10d(op);
  options.rootRank = root_rank;
  options.rootTensor = root_tensor;
  return backend.reduce(tensors, options);
}

inline WorkPtr all_gather(c10d_backend& backend, TensorLists outputs, Tensors inputs) {
  return backend.allgather(outputs, inputs);
}

inline WorkPtr all_gather_base(c10d_backend& backend, at::Tensor output, at::Tensor input) {
  return backend._allgather_base(output, input);
}

inline WorkPtr all_gather_coalesced(c10d_backend& backend, TensorLists outputs, Tensors inputs) {
  return backend.allgather_coalesced(outputs, inputs);
}

inline WorkPtr gather(c10d_backend& backend, TensorLists outputs, Tensors inputs, int root) {
  c10d::GatherOptions options;
  options.rootRank = root;
  return backend.gather(outputs, inputs, options);
}

inline WorkPtr scatter(c10d_backend& backend, Tensors outputs, TensorLists inputs, int root) {
  c10d::ScatterOptions options;
  options.rootRank = root;
  return backend.scatter(outputs, inputs, options);
}

inline WorkPtr reduce_scatter(c10d_backend& backend, Tensors outputs, TensorLists inputs,
                              ReduceOp op = ReduceOp::Sum) {
  c10d::ReduceScatterOptions options;
  options.reduceOp = to_c10d(op);
  return backend.reduce_scatter(outputs, inputs, options);
}

inline WorkPtr reduce_scatter_base(c10d_backend& backend, at::Tensor output, at::Tensor input,
                                   ReduceOp op = ReduceOp::Sum) {
  c10d::ReduceScatterOptions options;
  options.reduceOp = to_c10d(op);
  return backend._reduce_scatter_base(output, input, options);
}

inline WorkPtr all_to_all(c10d_backend& backend, Tensors outputs, Tensors inputs) {
  return backend.alltoall(outputs, inputs);
}

// No splits: equal parts.
inline WorkPtr all_to_all_base(c10d_backend& backend, at::Tensor output, at::Tensor input,
                               Splits output_splits = {}, Splits input_splits = {}) {
  return backend.alltoall_base(output, input, output_splits, input_splits);
}

inline WorkPtr send(c10d_backend& backend, Tensors tensors, int to, int tag = 0) {
  return backend.send(tensors, to, tag);
}

inline WorkPtr recv(c10d_backend& backend, Tensors tensors, int from, int tag = 0) {
  return backend.recv(tensors, from, tag);
}

inline WorkPtr recv_from_any(c10d_backend& backend, Tensors tensors, int tag = 0) {
  return backend.recvAnysource(tensors, tag);
}

}  // namespace lockstep::testing
