// The state of torch::optim::LBFGS: the directions and steps that it remembers, as vectors over all
// parameters. LibTorch stores it under the first parameter, and so does a snapshot.
//
// The coefficients `al` are left out, because each iteration computes them before it reads them.
#pragma once

#include <functional>

#include "snapshot/optimizer_parts.h"
#include "snapshot/optimizer_state.h"

namespace lockstep::snapshot {

// Like capture_optimizer and prepare_optimizer, for a torch::optim::LBFGS.
OptimizerState capture_lbfgs(const torch::optim::Optimizer& optimizer, const ParameterNames& names);
std::function<void()> prepare_lbfgs(torch::optim::Optimizer& optimizer, const OptimizerState& state,
                                    const ParameterNames& names);

}  // namespace lockstep::snapshot
