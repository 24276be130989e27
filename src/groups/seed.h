// One seed for the random generators of all ranks, where the program has chosen none.
#pragma once

#include <cstdint>
#include <vector>

#include "rendezvous/machines.h"

namespace lockstep::groups {

// The seed that LibTorch has chosen for this process; 0 if the program has set one of its own.
uint64_t unseeded_generator();

// If no rank's program has seeded, and the seeds differ, all ranks take one that follows from rank 0's.
void share_seed(const std::vector<rendezvous::RankFacts>& ranks);

}  // namespace lockstep::groups
