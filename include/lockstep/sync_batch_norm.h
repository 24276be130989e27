// Batch normalisation over the batches of all ranks together.
#pragma once

#include <concepts>
#include <memory>

#include <torch/nn/module.h>

#include <lockstep/process_group.h>

namespace lockstep {

// From here on every BatchNorm1d/2d/3d in the module, and the module itself if it is one, takes its
// statistics over the batches of all ranks of the group, whatever the size of each, empty ones included; in
// training mode only. The layers stay where and what they are: their type, their parameters and their buffers
// do not change. The gradients of weight and bias are those of this rank's batch; DistributedDataParallel
// averages them like all others.
//
// All ranks of the group must call it, with the same module, and while no other thread computes; afterwards
// they must make the same training passes through it. A second call replaces the group. Clones of a converted
// module are not converted.
//
// A layer with neither weights nor running statistics has nothing to tell it by: UsageError. Only for the
// CPU. A rank whose batch has exactly one value per channel gets LibTorch's own error about it before this
// code is reached, even if the other ranks have more.
void convert_sync_batchnorm(const std::shared_ptr<torch::nn::Module>& module,
                            const std::shared_ptr<ProcessGroup>& group = default_group());
// A module that no shared_ptr owns (`Net model;`).
void convert_sync_batchnorm(torch::nn::Module& module,
                            const std::shared_ptr<ProcessGroup>& group = default_group());

// Module holders (TORCH_MODULE, torch::nn::Sequential, …).
template <class Holder>
requires std::derived_from<typename Holder::ContainedType, torch::nn::Module>
void convert_sync_batchnorm(const Holder& holder,
                            const std::shared_ptr<ProcessGroup>& group = default_group()) {
  convert_sync_batchnorm(std::shared_ptr<torch::nn::Module>(holder.ptr()), group);
}

}  // namespace lockstep
