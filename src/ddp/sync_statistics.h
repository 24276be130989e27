// The arithmetic of batch normalisation over several ranks.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include <lockstep/process_group.h>

namespace lockstep::ddp {

// The arguments of aten::batch_norm in training mode; all but input may be undefined.
struct BatchNormCall {
  at::Tensor input, weight, bias, running_mean, running_var;
  double momentum = 0, eps = 0;
};

// Normalises with the mean and variance over the inputs of all ranks, and updates the running statistics with
// them: bitwise the same on all ranks. All ranks of the group must call it; it blocks. Inputs may be empty.
// The result has no graph.
at::Tensor synced_batch_norm(const BatchNormCall& call, const std::shared_ptr<ProcessGroup>& group);

// The same with a graph. Its backward pass is also a collective.
at::Tensor synced_batch_norm_with_graph(const BatchNormCall& call,
                                        const std::shared_ptr<ProcessGroup>& group);

}  // namespace lockstep::ddp
