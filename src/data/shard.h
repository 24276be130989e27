// The positions in an epoch's order that belong to one rank.
//
// The order lists all samples. From `start` on, its positions are assigned to the ranks in turn, one round
// after another. Round k starts at start + k * world. An epoch that is interrupted between two rounds
// therefore continues unchanged with the same number of ranks, and can continue with any other.
#pragma once

#include <cstdint>

namespace lockstep::data {

// How to treat a last round that does not have a sample for every rank.
enum class LastRound {
  Pad,     // fill it with samples from the start of the order, repeatedly if the order is short
  Drop,    // leave it out
  Uneven,  // the last ranks get no sample
};

struct Shard {
  uint64_t dataset_size = 0;
  uint64_t start = 0;  // at most dataset_size
  uint64_t world = 1;
  uint64_t rank = 0;
  LastRound last_round = LastRound::Pad;

  // The number of samples that this rank gets.
  uint64_t size() const;
  // The position of this rank's sample k in the order.
  uint64_t place(uint64_t k) const { return (start + k * world + rank) % dataset_size; }
  // The number of positions used after k rounds; all of them after the last round, even a padded or dropped
  // one.
  uint64_t consumed(uint64_t k) const;
};

}  // namespace lockstep::data
