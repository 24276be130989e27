// Gradients that look averaged, but are a rank's own: those that a ShardedOptimizer averages only in its
// step. Functions that read gradients, such as clip_grad_norm_, ask here.
#pragma once

#include <cstddef>

#include <ATen/core/Tensor.h>

namespace lockstep::comm {

// While it exists, gradients in this memory are such ones. Thread-safe.
class OwnGradients {
 public:
  explicit OwnGradients(const at::Tensor& memory);
  ~OwnGradients();
  OwnGradients(const OwnGradients&) = delete;
  OwnGradients& operator=(const OwnGradients&) = delete;

 private:
  const std::byte* begin_;
};

bool is_own(const at::Tensor& gradient);

}  // namespace lockstep::comm
