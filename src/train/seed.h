// Derives the seeds of the ranks.
#pragma once

#include <cstdint>

namespace lockstep::train {

// The seed that Seeds::PerRank gives to a rank.
uint64_t seed_of(uint64_t seed, int rank);

}  // namespace lockstep::train
