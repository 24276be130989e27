// The numbers of a step (rules.h), from the options of LibTorch's optimizers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "optim/rules.h"

namespace lockstep::optim {

// How LibTorch's optimizer of these options is called: "Adam"; null if it is none of the supported ones.
const char* name_of(const torch::optim::OptimizerOptions& options);

// The rule of these options. Throws UsageError if there is none.
Rule rule_of(const torch::optim::OptimizerOptions& options);

// Which arrays of rules.h the options need, with the names of LibTorch's state ("exp_avg").
struct StateName {
  int index;
  const char* name;
};
std::vector<StateName> states_of(const torch::optim::OptimizerOptions& options);

// `number`: of the parameter's step, from 1. `clip`: what gradients are multiplied by first.
Step step_of(const torch::optim::OptimizerOptions& options, int64_t number, std::optional<float> clip);

}  // namespace lockstep::optim
