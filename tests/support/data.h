// Test data whose sums and products are exact in every dtype, so that results compare bit for bit.
#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>

namespace lockstep::testing {

// Small whole numbers (0 … 3) that differ from rank to rank and from element to element. Truth values for
// bool.
inline at::Tensor exact_data(at::IntArrayRef sizes, at::ScalarType dtype, int rank, int salt = 0) {
  const int64_t count = c10::multiply_integers(sizes);
  auto values = at::remainder(at::arange(count, at::kLong) * 7 + rank * 5 + salt * 3, 4);
  if (dtype == at::kBool) return values.gt(1).view(sizes);
  return values.to(dtype).view(sizes);
}

inline const std::vector<at::ScalarType>& all_dtypes() {
  static const std::vector<at::ScalarType> dtypes = {
      at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar,         at::kByte,
      at::kShort, at::kInt,    at::kLong, at::kBool,     at::kComplexFloat, at::kComplexDouble};
  return dtypes;
}

// A tensor that says whose it is.
inline at::Tensor filled(int value, at::IntArrayRef sizes = {100}) {
  return at::full(sizes, value, at::kFloat);
}

// Bit for bit, dtype and shape included.
inline bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && at::equal(a, b);
}

}  // namespace lockstep::testing
