// What the ranks agree on in the first synchronised backward pass.
#pragma once

#include <cstdint>
#include <vector>

#include <lockstep/process_group.h>

namespace lockstep::reducer {

struct Learned {
  std::vector<size_t> order;  // of the parameters: the leader's
  std::vector<bool> sparse;   // on some rank
  std::vector<bool> used;     // on some rank
};

// All ranks must call it, with what they have seen themselves.
Learned agree(ProcessGroup& group, int leader, const Learned& seen);

// Those that were ready, in that order; then the others, last registered first.
std::vector<size_t> complete_order(const std::vector<size_t>& ready, size_t count);

}  // namespace lockstep::reducer
