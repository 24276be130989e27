// Which parameters a backward pass from some tensors can reach.
#pragma once

#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "compat/autograd.h"

namespace lockstep::reducer {

using Flags = std::vector<bool>;  // one for each parameter

// `nodes`: the index of the parameter that each node accumulates into.
Flags reachable(const std::vector<at::Tensor>& outputs,
                const std::unordered_map<compat::NodeAddress, size_t>& nodes);

}  // namespace lockstep::reducer
