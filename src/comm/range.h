// Consecutive elements of a tensor.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lockstep::comm {

struct Range {
  int64_t from = 0;
  int64_t count = 0;

  int64_t end() const { return from + count; }
  bool operator==(const Range&) const = default;
};

// What both contain; of no elements if that is nothing.
inline Range common(const Range& a, const Range& b) {
  const auto from = std::max(a.from, b.from);
  return {from, std::max<int64_t>(0, std::min(a.end(), b.end()) - from)};
}

}  // namespace lockstep::comm
