// DistributedDataParallel for TorchScript modules:
//
//   lockstep::DistributedDataParallel ddp(torch::jit::load("model.pt"), group);
//   auto output = ddp(std::vector<c10::IValue>{input}).toTensor();
//
// lockstep.h does not include this header, because LibTorch's headers for TorchScript take long to compile.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <lockstep/ddp.h>

namespace lockstep::detail {

ModelView view_of(const std::shared_ptr<torch::jit::Module>& module);

template <>
struct Viewer<torch::jit::Module> {
  static constexpr bool handle = true;
  static ModelView view(const std::shared_ptr<torch::jit::Module>& module) { return view_of(module); }
};

}  // namespace lockstep::detail
