// The contents of a snapshot, in memory.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::snapshot {

struct Entry {
  std::string name;      // UTF-8, unique in the document
  at::Tensor tensor;     // of a type that safetensors supports; any shape, including {} and {0}
  bool lasting = false;  // nothing changes the tensor any more, so it need not be copied
};

struct Document {
  std::vector<Entry> tensors;
  nlohmann::json about;  // everything that is not a tensor; floating-point numbers as in numbers.h
};

}  // namespace lockstep::snapshot
