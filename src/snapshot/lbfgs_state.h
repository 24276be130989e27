// The state of torch::optim::LBFGS: the directions and steps that it remembers, over all parameters as one
// vector. It hangs on the first parameter, whose name it has in a snapshot.
//
// Not in it: the coefficients `al`, which each iteration computes before it reads them.
#pragma once

#include <functional>

#include "snapshot/optimizer_parts.h"
#include "snapshot/optimizer_state.h"

namespace lockstep::snapshot {

// As capture_optimizer and prepare_optimizer. The optimizer is a torch::optim::LBFGS.
OptimizerState capture_lbfgs(const torch::optim::Optimizer& optimizer, const ParameterNames& names);
std::function<void()> prepare_lbfgs(torch::optim::Optimizer& optimizer, const OptimizerState& state,
                                    const ParameterNames& names);

}  // namespace lockstep::snapshot
