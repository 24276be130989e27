// Tensors with their names, in order.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::snapshot {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

}  // namespace lockstep::snapshot
