// The samples that one rank gets in one epoch, in order: the values, where Shard (shard.h) has the positions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "data/shard.h"

namespace lockstep::data {

// Immutable. An unshuffled order takes no memory. A shuffled one takes 4 bytes per sample of this rank (8 if
// the dataset is too large for 4), and as much per sample of the dataset while it is built.
class EpochSamples {
 public:
  // With a seed the order is that of torch.randperm for this seed, otherwise that of the dataset. Does not
  // use the default generator.
  EpochSamples(const Shard& shard, std::optional<uint64_t> shuffle_seed);

  size_t size() const { return size_; }
  size_t operator[](size_t k) const;

 private:
  Shard shard_;
  size_t size_;
  std::variant<std::monostate, std::vector<uint32_t>, std::vector<uint64_t>> shuffled_;
};

}  // namespace lockstep::data
