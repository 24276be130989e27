// The expected results of reductions, computed as simply as possible, with ATen only. Each rank knows the
// inputs of all ranks, so checks need no communication.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include <lockstep/process_group.h>

#include "support/data.h"

namespace lockstep::testing {

inline const std::vector<ReduceOp>& all_ops() {
  static const std::vector<ReduceOp> ops = {ReduceOp::Sum, ReduceOp::Avg,  ReduceOp::Product, ReduceOp::Min,
                                            ReduceOp::Max, ReduceOp::Band, ReduceOp::Bor,     ReduceOp::Bxor};
  return ops;
}

inline bool has_meaning(ReduceOp op, at::ScalarType dtype) {
  const bool integral = at::isIntegralType(dtype, true);
  if (op == ReduceOp::Avg) return !integral;
  if (op == ReduceOp::Band || op == ReduceOp::Bor || op == ReduceOp::Bxor) return integral;
  if (op == ReduceOp::Min || op == ReduceOp::Max) return !at::isComplexType(dtype);
  return true;
}

inline at::Tensor expected_reduction(const std::vector<at::Tensor>& inputs, ReduceOp op) {
  const auto dtype = inputs[0].scalar_type();
  const bool boolean = dtype == at::kBool;
  // Wide enough that no intermediate value is rounded.
  const auto wide = [&](const at::Tensor& t) {
    if (boolean || at::isComplexType(dtype)) return t;
    return t.to(at::isFloatingType(dtype) ? at::kDouble : at::kLong);
  };
  auto total = wide(inputs[0]);
  for (size_t i = 1; i < inputs.size(); ++i) {
    const auto next = wide(inputs[i]);
    switch (op) {
      case ReduceOp::Sum:
      case ReduceOp::Avg:
        total = boolean ? total.logical_or(next) : total + next;
        break;
      case ReduceOp::Product:
        total = boolean ? total.logical_and(next) : total * next;
        break;
      case ReduceOp::Min:
        total = boolean ? total.logical_and(next) : at::minimum(total, next);
        break;
      case ReduceOp::Max:
        total = boolean ? total.logical_or(next) : at::maximum(total, next);
        break;
      case ReduceOp::Band:
        total = at::bitwise_and(total, next);
        break;
      case ReduceOp::Bor:
        total = at::bitwise_or(total, next);
        break;
      case ReduceOp::Bxor:
        total = at::bitwise_xor(total, next);
        break;
    }
  }
  if (op == ReduceOp::Avg) total = total / static_cast<double>(inputs.size());
  return total.to(dtype);
}

// An average of three need not be exact. The error of one operation in the tensor's precision is allowed.
inline bool agrees(const at::Tensor& got, const at::Tensor& want, ReduceOp op) {
  if (op != ReduceOp::Avg) return same(got, want);
  const bool low = got.scalar_type() == at::kHalf || got.scalar_type() == at::kBFloat16;
  return got.scalar_type() == want.scalar_type() && got.sizes() == want.sizes() &&
         at::allclose(got, want, low ? 1e-2 : 1e-6, 0);
}

inline std::vector<at::Tensor> everyones(int world, at::IntArrayRef sizes, at::ScalarType dtype, int salt) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < world; ++rank) all.push_back(exact_data(sizes, dtype, rank, salt));
  return all;
}

}  // namespace lockstep::testing
