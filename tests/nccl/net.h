// A small model with every kind of state that the wrapper synchronises.
#pragma once

#include <lockstep/lockstep.h>

namespace lockstep::testing {

struct NormNet : torch::nn::Module {
  NormNet()
      : first(register_module("first", torch::nn::Linear(8, 32))),
        norm(register_module("norm", torch::nn::BatchNorm1d(32))),
        second(register_module("second", torch::nn::Linear(32, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return second(norm(torch::relu(first(x)))); }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear second;
};

}  // namespace lockstep::testing
