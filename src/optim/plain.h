// LibTorch's own optimizers.
#pragma once

#include <memory>
#include <vector>

#include <torch/optim/optimizer.h>

namespace lockstep::optim {

// The optimizer of these options and groups. Throws UsageError if they are none of the supported ones.
std::unique_ptr<torch::optim::Optimizer> plain_optimizer(
    std::vector<torch::optim::OptimizerParamGroup> groups, const torch::optim::OptimizerOptions& options);

// What the state of a parameter is filled with before the first step.
double initial_value(const torch::optim::OptimizerOptions& options);

}  // namespace lockstep::optim
