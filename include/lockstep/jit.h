// DistributedDataParallel for TorchScript modules:
//
//   lockstep::DistributedDataParallel ddp(torch::jit::load("model.pt"), group);
//   auto output = ddp(std::vector<c10::IValue>{input}).toTensor();
//
// Not in lockstep.h, since <torch/script.h> costs compile time.
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
