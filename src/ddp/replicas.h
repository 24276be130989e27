// Makes the tensors of all ranks the same, or checks whether they are.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <lockstep/ddp.h>

namespace lockstep::ddp {

using detail::NamedTensors;

// All ranks receive root's values; small tensors are sent together. All ranks must call it; it blocks.
void broadcast_all(ProcessGroup& group, const NamedTensors& tensors, int root);

// The first tensor that is not bitwise the same on all ranks, and the ranks on which it differs from rank 0
// ("1, 3").
struct Difference {
  std::string name, ranks;
};
// All ranks must call it; it blocks, and returns the same on all of them.
std::optional<Difference> first_difference(ProcessGroup& group, const NamedTensors& tensors);

// Throws MismatchError, the same on all ranks, with the first tensor that differs and the ranks. `when`: for
// the message, such as "at construction". All ranks must call it; it blocks.
void check_same_values(ProcessGroup& group, const NamedTensors& tensors, const char* when);

}  // namespace lockstep::ddp
