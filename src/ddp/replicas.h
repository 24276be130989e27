// Makes the tensors of all ranks the same, or finds out whether they are.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <lockstep/ddp.h>

namespace lockstep::ddp {

using detail::NamedTensors;

// All ranks take root's values. Small tensors travel together.
void broadcast_all(ProcessGroup& group, const NamedTensors& tensors, int root);

// The first tensor whose bits are not the same everywhere, and the ranks on which they are not rank 0's ("1,
// 3").
struct Difference {
  std::string name, ranks;
};
// All ranks must call it; the same answer on all of them.
std::optional<Difference> first_difference(ProcessGroup& group, const NamedTensors& tensors);

// Throws MismatchError, the same on all ranks, naming the first tensor whose bits differ and the ranks.
// `when`: "at construction", for the message.
void check_same_values(ProcessGroup& group, const NamedTensors& tensors, const char* when);

}  // namespace lockstep::ddp
