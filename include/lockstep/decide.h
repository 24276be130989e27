// Decisions that all ranks must make alike: to stop, to reduce the learning rate, to take another step.
//
// A rank's own loss is another one on each rank. A rank that decides by it leaves the others waiting in a
// collective, or takes other steps than they do. docs/patterns.md has the loops.
//
// All ranks must call these, and all get the same answer, to the bit. Each is one tiny collective.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>

#include <lockstep/process_group.h>

namespace lockstep {

// Whether it is true on every rank.
bool all_agree(bool mine, ProcessGroup& group);
bool all_agree(bool mine, const std::shared_ptr<ProcessGroup>& group = default_group());

// Whether it is true on at least one rank.
bool any(bool mine, ProcessGroup& group);
bool any(bool mine, const std::shared_ptr<ProcessGroup>& group = default_group());

// The mean over the ranks, each with the same weight, as DistributedDataParallel averages gradients. For
// ranks with different numbers of samples there is Average (lockstep/metrics.h).
double mean(double mine, ProcessGroup& group);
double mean(double mine, const std::shared_ptr<ProcessGroup>& group = default_group());

// The closure for an optimizer that decides by the loss, as LBFGS does with its line search: calls `closure`,
// and returns the mean of what it returned on all ranks. Together with gradients that
// DistributedDataParallel averages, every rank sees the same function, and evaluates it equally often.
//
//   optimizer.step(lockstep::averaged([&] {
//     optimizer.zero_grad();
//     auto loss = torch::mse_loss(ddp(x), y);
//     loss.backward();
//     return loss;
//   }));
std::function<at::Tensor()> averaged(std::function<at::Tensor()> closure,
                                     std::shared_ptr<ProcessGroup> group = default_group());

}  // namespace lockstep
