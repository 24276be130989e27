// Tunes this process for training, once it knows who shares its machine.
#pragma once

#include <vector>

#include "rendezvous/machines.h"

namespace lockstep::groups {

// Threads, cores and heap, as far as the user has not decided them: docs/tuning.md.
void tune_process(int rank, const std::vector<rendezvous::RankFacts>& ranks);

}  // namespace lockstep::groups
