// Decisions that must be the same on all ranks: to stop, to reduce the learning rate, to skip a step.
//
// The loss differs from rank to rank. A rank that bases such a decision on its own loss leaves the others
// waiting in a collective, or trains a different model. docs/patterns.md shows complete loops.
//
// All ranks of the group must call these functions, and all get the same result, bit for bit. Each makes one
// small collective: it blocks until all ranks have called it, and throws as every collective does
// (PeerLostError, TimeoutError, MismatchError). A null group throws UsageError.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>

#include <lockstep/process_group.h>

namespace lockstep {

// True if `mine` is true on every rank.
bool all_agree(bool mine, ProcessGroup& group);
bool all_agree(bool mine, const std::shared_ptr<ProcessGroup>& group = default_group());

// True if `mine` is true on at least one rank.
bool any(bool mine, ProcessGroup& group);
bool any(bool mine, const std::shared_ptr<ProcessGroup>& group = default_group());

// The mean over the ranks. All ranks have the same weight, as when DistributedDataParallel averages
// gradients. To weight the ranks by their number of samples, use Average (lockstep/metrics.h).
double mean(double mine, ProcessGroup& group);
double mean(double mine, const std::shared_ptr<ProcessGroup>& group = default_group());

// Wraps the closure of an optimizer that makes decisions based on the loss, such as LBFGS with its line
// search. The wrapper calls `closure` and returns the mean of the losses of all ranks. Since
// DistributedDataParallel averages the gradients, all ranks then minimize the same function and evaluate it
// equally often. Throws UsageError if `closure` is empty.
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
