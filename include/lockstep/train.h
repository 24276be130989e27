// Utilities for training loops: learning-rate scaling, gradient clipping and seeds. Also includes metrics and
// decisions over all ranks, schedules and the progress bar.
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

// The linear scaling rule: base times the world size. Use it with a learning rate that was tuned for one
// process, if each rank keeps that batch size, so that the global batch grows with the world size. Does not
// communicate.
double scaled_lr(double base, const ProcessGroup& group);
double scaled_lr(double base, const std::shared_ptr<ProcessGroup>& group = default_group());

// Scales the gradients so that the norm of all of them together, as one vector, is at most max_norm. Returns
// the norm before scaling. Like torch.nn.utils.clip_grad_norm_, but:
// - Does not communicate. Call it after backward() and before optimizer.step(). The gradients are then
//   averaged and the same on all ranks, and so is the norm, bit for bit: it is summed in double precision,
//   in an order that does not depend on the number of threads or (for norms 1, 2 and infinity) on the CPU.
// - A parameter that is listed twice counts once. Gradients may be undefined (ignored), sparse, and of
//   different dtypes.
// - With an infinite max_norm it only computes the norm.
// norm_type: above zero, or infinity for the largest absolute value. Anything else, or a negative max_norm,
// throws UsageError. A norm that is not finite makes all gradients non-finite, as in PyTorch; with
// error_if_nonfinite it throws an Error that names the parameter, and scales nothing.
double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2,
                       bool error_if_nonfinite = false);

enum class Seeds {
  PerRank,  // different random numbers on every rank; rank 0 gets those of torch::manual_seed(seed)
  Same,     // the same random numbers on all ranks: those of torch::manual_seed(seed)
};

// Seeds LibTorch's default generators (of the CPU and of all CUDA devices) and std::rand. Returns this rank's
// seed, for generators of your own. Does not communicate.
//
// Call it once, before creating the model, with the same seed on all ranks. Dropout and augmentation then
// differ from rank to rank, as they must for the ranks to contribute different gradients. The models still
// start equal, because DistributedDataParallel broadcasts rank 0's. Use Seeds::Same if nothing broadcasts the
// model: with InitSync::Verify or None, or without DistributedDataParallel.
//
// Rank 0 gets the seed itself. In a world of one this is torch::manual_seed(seed), so a ported program can be
// compared with the original, bit for bit. The seeds of the other ranks depend on the seed and the rank, not
// on the world size, and all ranks' seeds differ.
//
// Pass `seed`, not the returned value, to a DistributedSampler: its seed must be the same on all ranks.
uint64_t seed_everything(uint64_t seed, const ProcessGroup& group, Seeds seeds = Seeds::PerRank);
uint64_t seed_everything(uint64_t seed, const std::shared_ptr<ProcessGroup>& group = default_group(),
                         Seeds seeds = Seeds::PerRank);

}  // namespace lockstep
