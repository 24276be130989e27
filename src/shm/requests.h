// Makes requests (request.h) of tensors. All tensors are contiguous and on the CPU; what they hold in memory
// is what travels.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "shm/request.h"

namespace lockstep::shm {

using Tensors = std::vector<at::Tensor>;

Request all_reduce_of(const at::Tensor& tensor, Combine combine);
Request broadcast_of(const at::Tensor& tensor, int root, int rank);
Request reduce_of(const at::Tensor& tensor, Combine combine, int root, int rank);
// outputs: one for each rank, or one with room for all.
Request all_gather_of(const Tensors& outputs, const at::Tensor& input, int world_size);
// outputs: one for each rank; empty but on the root.
Request gather_of(const Tensors& outputs, const at::Tensor& input, int root);
// inputs: one for each rank; empty but on the root.
Request scatter_of(const at::Tensor& output, const Tensors& inputs, int root);
// inputs: one for each rank, or one with all of them.
Request reduce_scatter_of(const at::Tensor& output, const Tensors& inputs, Combine combine, int world_size);
// Pieces of any sizes, one for each rank.
Request all_to_all_of(const Tensors& outputs, const Tensors& inputs);
// Pieces of one tensor each; element counts.
Request all_to_all_of(const at::Tensor& output, const at::Tensor& input,
                      const std::vector<int64_t>& output_counts, const std::vector<int64_t>& input_counts);

}  // namespace lockstep::shm
