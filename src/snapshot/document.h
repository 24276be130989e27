// What a snapshot holds, in memory.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::snapshot {

struct Entry {
  std::string name;   // UTF-8; each only once in a document
  at::Tensor tensor;  // of a type that safetensors has a name for; any shape, {} and {0} too
};

struct Document {
  std::vector<Entry> tensors;
  nlohmann::json about;  // everything that is not a tensor; floating-point numbers as in numbers.h
};

}  // namespace lockstep::snapshot
