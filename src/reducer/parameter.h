// A parameter whose gradient is averaged.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::reducer {

struct Parameter {
  std::string name;
  at::Tensor tensor;
  bool sparse = false;  // its gradients will be
};
using Parameters = std::vector<Parameter>;

}  // namespace lockstep::reducer
