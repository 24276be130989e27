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

// LibTorch draws 53 bits; people write small numbers. This tells a seed that was set before this library was
// loaded, by a constructor of a static object, from LibTorch's.
constexpr uint64_t kLargestWritten = UINT32_MAX;

// Before main: afterwards any other seed is the program's.
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
  // Forked ranks have the same.
  const bool differ =
      std::any_of(ranks.begin(), ranks.end(), [&](const auto& rank) { return rank.own_seed != first; });
  if (!all_unseeded || !differ) return;
  // Not rank 0's own: it may have drawn from that already, and would draw the same numbers again.
  const uint64_t seed = ~first & ((uint64_t{1} << 53) - 1);
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
  base::log_debug("no rank has seeded its random generator; all ranks use {}", seed);
}

}  // namespace lockstep::groups
