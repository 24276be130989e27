// Divides the global batch among ranks and passes. The global batch does not depend on the number of ranks,
// so neither does what the model learns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include <lockstep/error.h>

namespace mingpt {

struct BatchPlan {
  int64_t ranks = 1;
  int64_t passes = 1;  // forward and backward passes per step; their gradients add up
  int64_t rows = 1;    // windows per pass

  int64_t share() const { return passes * rows; }  // windows of one rank per step
  int64_t global() const { return ranks * share(); }

  std::string text() const {
    const auto count = [](int64_t n, const char* one, const char* many) {
      return std::to_string(n) + " " + (n == 1 ? one : many);
    };
    return "a step takes " + count(global(), "window", "windows") + ": " + count(ranks, "rank", "ranks") +
           " x " + count(passes, "pass", "passes") + " x " + std::to_string(rows);
  }
};

// Makes passes as large as possible: at most `most` windows, and a divisor of the rank's share.
inline BatchPlan plan_batch(int64_t global, int64_t ranks, int64_t most) {
  if (global % ranks != 0) {
    const auto below = global / ranks * ranks, above = below + ranks;
    throw lockstep::UsageError("a global batch of " + std::to_string(global) +
                               " windows is not divisible by " + std::to_string(ranks) +
                               " ranks\nhint: use --global-batch " +
                               (below > 0 ? std::to_string(below) + " or " : "") + std::to_string(above) +
                               ", or another number of ranks");
  }
  const auto share = global / ranks;
  auto rows = std::min(most, share);
  while (share % rows != 0) --rows;
  return {.ranks = ranks, .passes = share / rows, .rows = rows};
}

}  // namespace mingpt
