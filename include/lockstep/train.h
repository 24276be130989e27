// The small things that a training loop needs: the rule for the learning rate, clipping, seeds; and through
// the headers below, metrics and decisions over all ranks, schedules and a progress bar.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/decide.h>
#include <lockstep/metrics.h>
#include <lockstep/process_group.h>
#include <lockstep/progress.h>
#include <lockstep/schedule.h>

namespace lockstep {

// The linear scaling rule: base times the world size. For a base found with one process, when each rank keeps
// that process's batch size, so that the batch of all ranks together has grown by the world size.
double scaled_lr(double base, const ProcessGroup& group);
double scaled_lr(double base, const std::shared_ptr<ProcessGroup>& group = default_group());

// Scales the gradients so that their norm, over all of them as one vector, is at most max_norm, and returns
// the norm that they had. As torch.nn.utils.clip_grad_norm_, and:
// - Does not communicate. Call it between backward and optimizer.step(): the gradients are the average then,
//   the same on all ranks, and the norm is too, bit for bit: it is summed in double and in an order that does
//   not depend on the number of threads or (for norms 1, 2 and infinity) the kind of CPU.
// - A parameter that is in the list twice counts once. Gradients may be undefined (left out), sparse, and of
//   different dtypes.
// - An infinite max_norm only measures.
// norm_type: above zero, or infinity for the largest absolute value; anything else is a UsageError. A norm
// that is not finite spreads to all gradients, as PyTorch's does; with error_if_nonfinite it is an Error that
// names the parameter, and nothing is scaled.
double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2,
                       bool error_if_nonfinite = false);

enum class Seeds {
  PerRank,  // every rank has random numbers of its own; rank 0 those of torch::manual_seed(seed)
  Same,     // all ranks have the same, those of torch::manual_seed(seed)
};

// Seeds LibTorch's default generators (of the CPU and of all CUDA devices) and std::rand, and returns the
// seed that this rank got, for generators of your own. Does not communicate.
//
// To be called once, before the model is made, with the same seed on all ranks: dropout and augmentation then
// differ from rank to rank, as they must for the ranks to be worth more than one, and
// DistributedDataParallel makes the models equal by sending rank 0's. Use Seeds::Same where nothing does
// that: InitSync::Verify or None, or a model that is used without DistributedDataParallel.
//
// Rank 0 gets the seed itself: in a world of one this is torch::manual_seed(seed), so that a program that was
// ported can be compared with the one it was, bit for bit. What the others get depends on the seed and their
// rank, not on the world size, and no two ranks get the same.
// A DistributedSampler has a seed of its own, which must be the same on all ranks: give it `seed`, not what
// this returns.
uint64_t seed_everything(uint64_t seed, const ProcessGroup& group, Seeds seeds = Seeds::PerRank);
uint64_t seed_everything(uint64_t seed, const std::shared_ptr<ProcessGroup>& group = default_group(),
                         Seeds seeds = Seeds::PerRank);

}  // namespace lockstep
