// Averages a sparse gradient, of which each rank has different rows.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/mean.h>
#include <lockstep/process_group.h>

namespace lockstep::reducer {

// In three steps: the ranks exchange their numbers of rows (over the control channel), gather indices and
// values, and add them. All ranks must make the same calls in the same order.
class SparseExchange {
 public:
  // `gradient`: this rank's, sparse; undefined if it has none. `parameter`: to which the gradient belongs.
  SparseExchange(const at::Tensor& gradient, const at::Tensor& parameter);

  int64_t rows() const;
  // Starts to gather. `rows`: the number of rows of each rank.
  void start(ProcessGroup& group, std::vector<int64_t> rows);
  // Blocks, and returns the mean over the ranks, coalesced.
  at::Tensor finish(const Mean& mean);

 private:
  at::Tensor gradient_;  // coalesced
  std::vector<int64_t> rows_;
  Work indices_, values_;
};

// All three steps for one gradient.
at::Tensor average_sparse(ProcessGroup& group, const at::Tensor& gradient, const at::Tensor& parameter,
                          const Mean& mean);

}  // namespace lockstep::reducer
