// Deals the global batch: it stays the same whatever the number of ranks, and with it what the model learns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include <lockstep/error.h>

namespace mingpt {

struct BatchPlan {
  int64_t ranks = 1;
  int64_t passes = 1;  // forward and backward, whose gradients add up
  int64_t rows = 1;    // windows in a pass

  int64_t share() const { return passes * rows; }  // of one rank, in a step
  int64_t global() const { return ranks * share(); }

  std::string text() const {
    const auto count = [](int64_t n, const char* one, const char* many) {
      return std::to_string(n) + " " + (n == 1 ? one : many);
    };
    return "a step takes " + count(global(), "window", "windows") + ": " + count(ranks, "rank", "ranks") +
           " x " + count(passes, "pass", "passes") + " x " + std::to_string(rows);
  }
};

// Passes are as large as `most` allows and as the share divides.
inline BatchPlan plan_batch(int64_t global, int64_t ranks, int64_t most) {
  if (global % ranks != 0) {
    const auto below = global / ranks * ranks, above = below + ranks;
    throw lockstep::UsageError("a global batch of " + std::to_string(global) +
                               " windows does not divide by " + std::to_string(ranks) +
                               " ranks\nhint: take --global-batch " +
                               (below > 0 ? std::to_string(below) + " or " : "") + std::to_string(above) +
                               ", or another number of ranks");
  }
  const auto share = global / ranks;
  auto rows = std::min(most, share);
  while (share % rows != 0) --rows;
  return {.ranks = ranks, .passes = share / rows, .rows = rows};
}

}  // namespace mingpt
