// Tunes this process for training, once the other ranks on its machine are known.
#pragma once

#include <vector>

#include "rendezvous/machines.h"

namespace lockstep::groups {

// Sets threads, cores and heap, unless the user has set them (docs/tuning.md).
void tune_process(int rank, const std::vector<rendezvous::RankFacts>& ranks);

}  // namespace lockstep::groups
