// seed_everything.
#include "train/seed.h"

#include <cstdlib>

#include <ATen/Context.h>

#include <lockstep/train.h>

#include "train/group_of.h"

namespace lockstep {

namespace {

// One step of the generator "splitmix64" from `state`: neighbouring states yield unrelated numbers.
uint64_t splitmix64(uint64_t state) {
  state += 0x9e3779b97f4a7c15U;
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9U;
  state = (state ^ (state >> 27)) * 0x94d049bb133111ebU;
  return state ^ (state >> 31);
}

// Permutes the 31-bit numbers: different inputs yield different outputs, because each step is invertible.
uint32_t permute31(uint32_t number) {
  constexpr uint32_t kMask = 0x7fffffffU;
  number &= kMask;
  number = ((number ^ (number >> 16)) * 0x85ebca6bU) & kMask;
  number = ((number ^ (number >> 13)) * 0xc2b2ae35U) & kMask;
  return number ^ (number >> 16);
}

}  // namespace

// Rank 0 gets the seed itself, so that a world of one draws the same numbers as a program without lockstep.
//
// LibTorch's CPU generator uses only the lower 32 bits. Among so few values, plain hashes of a thousand ranks
// would collide for one in ten thousand seeds; a permutation never collides. The highest of the 32 bits is
// the inverse of the seed's, so no other rank collides with rank 0, nor with rank 0 of a run with another
// small seed.
uint64_t train::seed_of(uint64_t seed, int rank) {
  if (rank == 0) return seed;
  const uint64_t mixed = splitmix64(seed);
  const auto low = permute31(static_cast<uint32_t>(mixed) + static_cast<uint32_t>(rank));
  const auto high_bit = ~static_cast<uint32_t>(seed) & 0x80000000U;
  return (mixed & 0xffffffff00000000U) | high_bit | low;
}

uint64_t seed_everything(uint64_t seed, const ProcessGroup& group, Seeds seeds) {
  const uint64_t mine = seeds == Seeds::Same ? seed : train::seed_of(seed, group.rank());
  at::manual_seed(mine);
  std::srand(static_cast<unsigned>(mine));
  return mine;
}

uint64_t seed_everything(uint64_t seed, const std::shared_ptr<ProcessGroup>& group, Seeds seeds) {
  return seed_everything(seed, train::group_of(group, "seed_everything"), seeds);
}

}  // namespace lockstep
