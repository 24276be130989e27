// Averages a sparse gradient, of which each rank has other rows.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/mean.h>
#include <lockstep/process_group.h>

namespace lockstep::reducer {

// In three steps: all ranks learn how many rows each has (over the control channel), gather indices and
// values, and add them up. All ranks must make the same calls in the same order.
class SparseExchange {
 public:
  // `gradient`: this rank's, sparse; undefined for none. `parameter`: what it is the gradient of.
  SparseExchange(const at::Tensor& gradient, const at::Tensor& parameter);

  int64_t rows() const;
  // Starts gathering. `rows`: of each rank.
  void start(ProcessGroup& group, std::vector<int64_t> rows);
  // The mean over the ranks, coalesced.
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
