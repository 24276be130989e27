// The seed of a rank.
#pragma once

#include <cstdint>

namespace lockstep::train {

// With Seeds::PerRank.
uint64_t seed_of(uint64_t seed, int rank);

}  // namespace lockstep::train
