// How a sum over ranks becomes a mean: when it is divided, and by what.
#pragma once

#include <bitset>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <lockstep/process_group.h>

namespace lockstep {

// Created once per backward pass, and used by everything that sums gradients.
class Mean {
 public:
  Mean() = default;
  using Dtypes = std::bitset<64>;  // by at::ScalarType
  // `participants`: the ranks whose gradients count, of `world_size`. `free_averages`: the dtypes of which
  // the group computes ReduceOp::Avg at the cost of a sum.
  Mean(int participants, int world_size, Dtypes free_averages = {})
      : participants_(participants), world_size_(world_size), free_averages_(free_averages) {}

  // The number of ranks whose gradients count: all, or under Join those that still have input.
  int participants() const { return participants_; }

  // For an all-reduce of gradients of this dtype: multiply by factor(), reduce with op(), then call finish().
  // Exactly one of the three divides.
  double factor(at::ScalarType dtype) const { return divides_before(dtype) ? 1.0 / participants_ : 1.0; }
  ReduceOp op(at::ScalarType dtype) const { return divides_within(dtype) ? ReduceOp::Avg : ReduceOp::Sum; }
  void finish(const at::Tensor& reduced) const;

  // For sums that a communication hook computes: divide() works in place, divided() returns a new tensor.
  at::Tensor divide(const at::Tensor& sum) const;
  at::Tensor divided(const at::Tensor& sum) const;

 private:
  bool is_free(at::ScalarType dtype) const { return free_averages_[static_cast<size_t>(dtype)]; }
  static bool is_wide(at::ScalarType dtype) { return dtype == at::kFloat || dtype == at::kDouble; }
  // Dividing afterwards would be another pass over memory that is no longer in the caches. Narrow types are
  // divided afterwards, because they would lose bits before the sum.
  bool divides_before(at::ScalarType dtype) const { return !is_free(dtype) && is_wide(dtype); }
  // ReduceOp::Avg divides by the world size, so all ranks must count.
  bool divides_within(at::ScalarType dtype) const {
    return !divides_before(dtype) && participants_ == world_size_;
  }

  int participants_ = 1;
  int world_size_ = 1;
  Dtypes free_averages_;
};

}  // namespace lockstep
