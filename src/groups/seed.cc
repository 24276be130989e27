#include "groups/seed.h"

#include <algorithm>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>

#include "base/log.h"

namespace lockstep::groups {

namespace {

uint64_t current_seed() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.current_seed();
}

// LibTorch's random seeds have 53 bits; people choose small numbers. This distinguishes a seed that the
// constructor of a static object set before this library was loaded from LibTorch's own.
constexpr uint64_t kLargestWritten = UINT32_MAX;

// Initialised before main: any other seed that is found later was set by the program.
const uint64_t seed_when_loaded = current_seed();

}  // namespace

uint64_t unseeded_generator() {
  const auto seed = current_seed();
  return seed == seed_when_loaded && seed > kLargestWritten ? seed : 0;
}

void share_seed(const std::vector<rendezvous::RankFacts>& ranks) {
  const auto first = ranks.front().own_seed;
  const bool all_unseeded =
      std::none_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank.own_seed == 0; });
  // Forked ranks have the same seed already.
  const bool differ =
      std::any_of(ranks.begin(), ranks.end(), [&](const auto& rank) { return rank.own_seed != first; });
  if (!all_unseeded || !differ) return;
  // Not rank 0's own seed: rank 0 may already have drawn numbers from it, and would draw them again.
  const uint64_t seed = ~first & ((uint64_t{1} << 53) - 1);
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
  base::log_debug("no rank has seeded its random generator; all ranks use {}", seed);
}

}  // namespace lockstep::groups
