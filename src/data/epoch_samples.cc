#include "data/epoch_samples.h"

#include <limits>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

namespace lockstep::data {

namespace {

// Uses LibTorch's own randperm, because its algorithm for huge datasets differs between versions. The values
// drawn do not depend on the dtype.
at::Tensor permutation(uint64_t dataset_size, uint64_t seed) {
  const bool fits_int = dataset_size <= static_cast<uint64_t>(std::numeric_limits<int32_t>::max());
  return at::randperm(static_cast<int64_t>(dataset_size), at::detail::createCPUGenerator(seed),
                      at::TensorOptions().device(at::kCPU).dtype(fits_int ? at::kInt : at::kLong));
}

template <class Index, class Drawn>
std::vector<Index> pick(const Shard& shard, size_t size, const Drawn* order) {
  std::vector<Index> picked(size);
  for (size_t k = 0; k < size; ++k) picked[k] = static_cast<Index>(order[shard.place(k)]);
  return picked;
}

}  // namespace

EpochSamples::EpochSamples(const Shard& shard, std::optional<uint64_t> shuffle_seed)
    : shard_(shard), size_(shard.size()) {
  if (!shuffle_seed || size_ == 0) return;
  const auto order = permutation(shard.dataset_size, *shuffle_seed);
  if (order.scalar_type() == at::kInt) {
    shuffled_ = pick<uint32_t>(shard, size_, order.data_ptr<int32_t>());
  } else if (shard.dataset_size - 1 <= std::numeric_limits<uint32_t>::max()) {
    shuffled_ = pick<uint32_t>(shard, size_, order.data_ptr<int64_t>());
  } else {
    shuffled_ = pick<uint64_t>(shard, size_, order.data_ptr<int64_t>());
  }
}

size_t EpochSamples::operator[](size_t k) const {
  if (const auto* narrow = std::get_if<std::vector<uint32_t>>(&shuffled_)) return (*narrow)[k];
  if (const auto* wide = std::get_if<std::vector<uint64_t>>(&shuffled_)) return (*wide)[k];
  return shard_.place(k);
}

}  // namespace lockstep::data
