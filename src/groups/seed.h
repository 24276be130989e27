// One seed for the random generators of all ranks, if the program has set none.
#pragma once

#include <cstdint>
#include <vector>

#include "rendezvous/machines.h"

namespace lockstep::groups {

// The seed that LibTorch chose for this process; 0 if the program has set one.
uint64_t unseeded_generator();

// If no rank's program has set a seed, and the seeds differ, sets one that is derived from rank 0's. All
// ranks must call it with the same facts.
void share_seed(const std::vector<rendezvous::RankFacts>& ranks);

}  // namespace lockstep::groups
