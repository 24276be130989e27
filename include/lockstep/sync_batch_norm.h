// Batch normalization with statistics over the batches of all ranks.
#pragma once

#include <concepts>
#include <memory>

#include <torch/nn/module.h>

#include <lockstep/process_group.h>

namespace lockstep {

// Converts every BatchNorm1d/2d/3d in the module, or the module itself if it is one. In training mode, a
// converted layer computes its statistics over the batches of all ranks of the group, which may have
// different sizes and may be empty. Its type, parameters and buffers do not change. The gradients of weight
// and bias are those of this rank's batch; DistributedDataParallel averages them like all others.
//
// A collective: all ranks of the group must call it with the same module, while no other thread computes.
// Afterwards they must make the same training passes through the module. A second call replaces the group. A
// clone of a converted module is not converted.
//
// Throws UsageError for a null module or group, and for a layer with neither weights nor running statistics,
// by which it could be recognized, or on a device that is neither the CPU nor CUDA; MismatchError if the
// layers differ between the ranks. On a CUDA device, each layer waits for the device: its statistics are
// combined on the CPU. If a rank's batch has exactly one value per channel, LibTorch itself throws before
// lockstep is called, even if the other ranks have more.
void convert_sync_batchnorm(const std::shared_ptr<torch::nn::Module>& module,
                            const std::shared_ptr<ProcessGroup>& group = default_group());
// For a module that no shared_ptr owns (`Net model;`). It must outlive its training passes.
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
