// Where an optimizer keeps a parameter's state, which differs between LibTorch's versions.
#pragma once

#include <type_traits>
#include <utility>

#include <torch/optim/optimizer.h>

namespace lockstep::compat {

// Keyed by the text of an address in LibTorch 1.13, by the address itself in later ones.
using OptimizerStates = std::remove_reference_t<decltype(std::declval<torch::optim::Optimizer&>().state())>;

// The key of this parameter's state, which is valid only in this process.
OptimizerStates::key_type state_key(const at::Tensor& parameter);

}  // namespace lockstep::compat
