// Copies several tensors into one flat tensor, and back.
#pragma once

#include <vector>

#include <ATen/ATen.h>

namespace lockstep::comm {

// A copy of all their elements, one tensor after the other.
inline at::Tensor flatten(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> pieces;
  pieces.reserve(tensors.size());
  for (const auto& tensor : tensors) pieces.push_back(tensor.detach().reshape({-1}));
  return at::cat(pieces);
}

// The reverse: copies the elements into the tensors.
inline void unflatten(const at::Tensor& flat, const std::vector<at::Tensor>& tensors) {
  int64_t offset = 0;
  for (const auto& tensor : tensors) {
    tensor.detach().copy_(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

}  // namespace lockstep::comm
