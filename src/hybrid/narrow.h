// Floats in half the bytes, for their way between machines.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include <c10/core/ScalarType.h>

namespace lockstep::hybrid {

struct Narrow {
  size_t element_bytes;
  // Divides, and then rounds to nearest even: a sum of many large gradients may exceed the range of a small
  // type.
  void (*narrow)(std::byte* to, const float* from, int64_t count, float divisor);
  void (*widen)(float* to, const std::byte* from, int64_t count);
  // The sum of all sources, in their order.
  void (*add)(float* to, const std::byte* const* sources, int source_count, int64_t count);
};

// Null if there is none for this dtype. Never destroyed.
const Narrow* narrow_to(c10::ScalarType dtype);

}  // namespace lockstep::hybrid
