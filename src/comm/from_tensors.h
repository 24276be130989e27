// Builds requests (request.h) from tensors. All tensors must be contiguous; their bytes in memory are what is
// sent. The caller keeps them alive, or adds them to Request::keep.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/request.h"

namespace lockstep::comm {

using Tensors = std::vector<at::Tensor>;

Request all_reduce_of(const at::Tensor& tensor, ReduceOp op);
Request broadcast_of(const at::Tensor& tensor, int root, int rank);
Request reduce_of(const at::Tensor& tensor, ReduceOp op, int root, int rank);
// outputs: one for each rank, or one with room for all.
Request all_gather_of(at::ArrayRef<at::Tensor> outputs, const at::Tensor& input, int world_size);
// outputs: one for each rank; empty except on the root.
Request gather_of(const Tensors& outputs, const at::Tensor& input, int root);
// inputs: one for each rank; empty except on the root.
Request scatter_of(const at::Tensor& output, const Tensors& inputs, int root);
// inputs: one for each rank, or one that contains all of them.
Request reduce_scatter_of(const at::Tensor& output, at::ArrayRef<at::Tensor> inputs, ReduceOp op,
                          int world_size);
// One tensor of any size for each rank.
Request all_to_all_of(const Tensors& outputs, const Tensors& inputs);
// Consecutive parts of one tensor, given by their numbers of elements.
Request all_to_all_of(const at::Tensor& output, const at::Tensor& input,
                      const std::vector<int64_t>& output_counts, const std::vector<int64_t>& input_counts);
Request send_of(const at::Tensor& tensor, int to, int tag);
Request receive_of(const at::Tensor& tensor, int from, int tag);

}  // namespace lockstep::comm
