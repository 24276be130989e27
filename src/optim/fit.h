// Which of the rules (rules.h) has the bits of this LibTorch's optimizers on this CPU.
#pragma once

#include <torch/optim/optimizer.h>

#include "optim/rules.h"

namespace lockstep::optim {

// Compares the rules with LibTorch's optimizer, for a few steps of a small tensor with these options, but a
// learning rate of its own.
// `exact`: false if no rule has the same bits; then the update is the closest one.
struct Fit {
  Update update;
  bool exact;
};
Fit fit_of(const torch::optim::OptimizerOptions& options);

// Which operations the steps of these options have. Those with the same ones have the same fit.
int operations_of(const torch::optim::OptimizerOptions& options);

}  // namespace lockstep::optim
