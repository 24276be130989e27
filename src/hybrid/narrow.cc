#include "hybrid/narrow.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace lockstep::hybrid {

namespace {

template <class Small>
void narrow(std::byte* to, const float* from, int64_t count, float divisor) {
  auto* const small = reinterpret_cast<Small*>(to);
  for (int64_t i = 0; i < count; ++i) small[i] = static_cast<Small>(from[i] / divisor);
}

template <class Small>
void widen(float* to, const std::byte* from, int64_t count) {
  const auto* const small = reinterpret_cast<const Small*>(from);
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(small[i]);
}

template <class Small>
void add(float* to, const std::byte* const* sources, int source_count, int64_t count) {
  widen<Small>(to, sources[0], count);
  for (int source = 1; source < source_count; ++source) {
    const auto* const small = reinterpret_cast<const Small*>(sources[source]);
    for (int64_t i = 0; i < count; ++i) to[i] += static_cast<float>(small[i]);
  }
}

template <class Small>
constexpr Narrow kNarrow{sizeof(Small), narrow<Small>, widen<Small>, add<Small>};

}  // namespace

const Narrow* narrow_to(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Half:
      return &kNarrow<c10::Half>;
    case c10::ScalarType::BFloat16:
      return &kNarrow<c10::BFloat16>;
    default:
      return nullptr;
  }
}

}  // namespace lockstep::hybrid
