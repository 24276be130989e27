// Gives each rank a CUDA device of its own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rendezvous/machines.h"

namespace lockstep::nccl {

// Why the ranks do not all have a device of their own, and what to do about it.
struct TooFew {
  std::string evidence, hint;
};

// Sets RankFacts::cuda_device of every rank, or of none; ranks that have their devices already keep them.
// Ranks on one machine that see the same devices divide them: the first of these ranks gets the first device,
// and so on, which is the order of the local ranks. If a launcher shows each rank its own devices
// (CUDA_VISIBLE_DEVICES), a rank gets the first that it sees.
std::optional<TooFew> assign_devices(std::vector<rendezvous::RankFacts>& ranks);

}  // namespace lockstep::nccl
