#include "data/shard.h"

#include <algorithm>

namespace lockstep::data {

uint64_t Shard::size() const {
  const uint64_t left = dataset_size - start;
  const uint64_t whole_rounds = left / world;
  const uint64_t rest = left % world;
  switch (last_round) {
    case LastRound::Pad:
      return whole_rounds + (rest > 0 ? 1 : 0);
    case LastRound::Drop:
      return whole_rounds;
    case LastRound::Uneven:
      return whole_rounds + (rank < rest ? 1 : 0);
  }
  return 0;
}

uint64_t Shard::consumed(uint64_t k) const {
  if (k == 0) return start;
  // If the last round is uneven, a rank may run out of samples before the others do.
  if (last_round != LastRound::Uneven && k >= size()) return dataset_size;
  return std::min(start + k * world, dataset_size);
}

}  // namespace lockstep::data
