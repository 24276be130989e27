// A parameter whose gradient is averaged.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::reducer {

struct Parameter {
  std::string name;
  at::Tensor tensor;
  bool sparse = false;  // its gradients are expected to be sparse
  // When the reducer was created.
  at::ScalarType dtype = tensor.scalar_type();
  at::Device device = tensor.device();
};
using Parameters = std::vector<Parameter>;

}  // namespace lockstep::reducer
