// Which places of an epoch's order belong to a rank.
//
// The order is a list of all samples. From `start` on, its places go round the ranks in turn. As round k
// begins at start + k * world, an epoch interrupted between two rounds goes on unchanged when the rest is
// dealt to the same world, and can as well be dealt to another.
#pragma once

#include <cstdint>

namespace lockstep::data {

// What becomes of a last round that has not a sample for every rank.
enum class LastRound {
  Pad,     // samples from the order's beginning fill it, over and over if it is short
  Drop,    // it is left out
  Uneven,  // the last ranks get none
};

struct Shard {
  uint64_t dataset_size = 0;
  uint64_t start = 0;  // at most dataset_size
  uint64_t world = 1;
  uint64_t rank = 0;
  LastRound last_round = LastRound::Pad;

  // How many samples this rank gets.
  uint64_t size() const;
  // Where in the order its sample k stands.
  uint64_t place(uint64_t k) const { return (start + k * world + rank) % dataset_size; }
  // How much of the order is used up after k rounds: all of it after the last, however that was filled.
  uint64_t consumed(uint64_t k) const;
};

}  // namespace lockstep::data
