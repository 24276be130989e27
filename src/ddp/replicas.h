// Makes the tensors of all ranks the same, or finds out whether they are.
#pragma once

#include <vector>

#include <lockstep/ddp.h>

namespace lockstep::ddp {

using detail::NamedTensors;

// All ranks take root's values. Small tensors travel together.
void broadcast_all(ProcessGroup& group, const NamedTensors& tensors, int root);

// Throws MismatchError, the same on all ranks, naming the first tensor whose bits differ and the ranks.
// `when`: "at construction", for the message.
void check_same_values(ProcessGroup& group, const NamedTensors& tensors, const char* when);

}  // namespace lockstep::ddp
