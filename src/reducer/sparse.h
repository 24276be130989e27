// Averages a sparse gradient, whose ranks have different rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <lockstep/process_group.h>

namespace lockstep::reducer {

// In two steps, so that the first can travel while the backward pass goes on. All ranks must do both in the
// same order among the group's other calls.
class SparseExchange {
 public:
  // `gradient`: this rank's, sparse; undefined for none. `parameter`: what it is the gradient of.
  SparseExchange(ProcessGroup& group, const at::Tensor& gradient, const at::Tensor& parameter);
  // The sum over all ranks divided by `participants`, coalesced.
  at::Tensor finish(int participants);

 private:
  ProcessGroup& group_;
  at::Tensor gradient_;  // coalesced
  Work counts_;
};

}  // namespace lockstep::reducer
