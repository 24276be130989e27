// One rank's samples of one epoch, in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "data/shard.h"

namespace lockstep::data {

// Immutable. An order that is not shuffled needs no memory; a shuffled one 4 bytes for each sample of this
// rank (8 when the dataset is too large for that), and as much for each sample of the dataset while it is
// built.
class EpochSamples {
 public:
  // The order is torch.randperm's for this seed, or that of the dataset. Leaves the default generator alone.
  EpochSamples(const Shard& shard, std::optional<uint64_t> shuffle_seed);

  size_t size() const { return size_; }
  size_t operator[](size_t k) const;

 private:
  Shard shard_;
  size_t size_;
  std::variant<std::monostate, std::vector<uint32_t>, std::vector<uint64_t>> shuffled_;
};

}  // namespace lockstep::data
