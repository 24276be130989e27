// The data that `lockstep bench` and its peers use to check a row: small whole numbers, so that every dtype
// represents them and their sums exactly, in any order of summation. Pure functions, without LibTorch.
//
// The numbers look random, so that a misplaced element is detected; no contribution to a sum is 0, so that a
// missing rank is detected in every element. They repeat after kPeriod elements, so that checking costs
// little more than reading; the period is a prime, so that no chunk of an algorithm is a multiple of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace lockstep::bench {

inline constexpr int64_t kPeriod = 65521;
inline constexpr int kMostRanks = 127;  // with more, sums would not fit into 8 bits

// The contents of outputs before the call: never a moved value, and rarely a reduced one.
inline constexpr double kPoison = 126;

// Rounds of multiplication and shift, as in splitmix64, spread the bits of `index` over the result.
inline uint64_t mix(int rank, int64_t index) {
  uint64_t x = static_cast<uint64_t>(index % kPeriod + 1) * 0x9E3779B97F4A7C15ull +
               static_cast<uint64_t>(rank) * 0xD1B54A32D192ED03ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// The value of `rank` at `index` if data is only moved.
inline double moved_value(int rank, int64_t index) { return static_cast<double>(mix(rank, index) % 101); }

// The value of `rank` at `index` if data is reduced over `world` ranks with `op`: "sum", "avg", "product",
// "min", "max", "band", "bor" or "bxor".
inline double contribution(std::string_view op, int world, int rank, int64_t index) {
  const uint64_t random = mix(rank, index);
  if (op == "sum" || op == "avg") {
    return 1 + static_cast<double>(random % static_cast<uint64_t>(std::min(3, kMostRanks / world)));
  }
  if (op == "product") {  // 2 or 3 from one rank, 1 from the others, so that no product is too large
    const uint64_t same_for_all = mix(0, index);
    return same_for_all % static_cast<uint64_t>(world) == static_cast<uint64_t>(rank)
               ? 2 + static_cast<double>(random % 2)
               : 1;
  }
  return static_cast<double>(random % 101);
}

inline double reduced_value(std::string_view op, int world, int64_t index) {
  double result = contribution(op, world, 0, index);
  for (int rank = 1; rank < world; ++rank) {
    const double next = contribution(op, world, rank, index);
    const auto left = static_cast<uint64_t>(result), right = static_cast<uint64_t>(next);
    if (op == "sum" || op == "avg") result += next;
    if (op == "product") result *= next;
    if (op == "min") result = std::min(result, next);
    if (op == "max") result = std::max(result, next);
    if (op == "band") result = static_cast<double>(left & right);
    if (op == "bor") result = static_cast<double>(left | right);
    if (op == "bxor") result = static_cast<double>(left ^ right);
  }
  return op == "avg" ? result / world : result;
}

}  // namespace lockstep::bench
