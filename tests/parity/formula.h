// Numbers that both programs compute themselves, so that they need not exchange files. formula.py is the
// same, line by line; change both together.
//
// Every step is exact or correctly rounded, so the two agree to the last bit.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include <torch/torch.h>

namespace lockstep::parity {

// A stream of numbers for each tensor, spread over all 32 bits.
inline uint32_t scatter(uint32_t stream, uint32_t element) {
  uint32_t bits = stream * 0x9e3779b1u + element;
  for (const uint32_t factor : {0x2c1b3c6du, 0x297a2d39u}) {
    bits ^= bits >> 15;
    bits *= factor;
  }
  return bits ^ (bits >> 15);
}

// In [-1, 1), with 24 bits, so that a float represents it exactly.
inline double unit(uint32_t stream, uint32_t element) {
  return (scatter(stream, element) >> 8) / 8388608.0 - 1;
}

inline torch::Tensor real(uint32_t stream, at::IntArrayRef shape, double divisor = 1, double offset = 0) {
  std::vector<float> values(c10::multiply_integers(shape));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(unit(stream, static_cast<uint32_t>(i)) / divisor + offset);
  }
  return torch::tensor(values).reshape(shape);
}

inline torch::Tensor whole(uint32_t stream, at::IntArrayRef shape, uint32_t below) {
  std::vector<int64_t> values(c10::multiply_integers(shape));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = scatter(stream, static_cast<uint32_t>(i)) % below;
  }
  return torch::tensor(values, torch::kLong).reshape(shape);
}

// Streams below this one are for weights.
constexpr uint32_t kFirstBatch = 1000;

// Every rank starts with different weights, which DDP must replace by those of rank 0.
inline void fill(torch::nn::Module& model, int rank) {
  torch::NoGradGuard no_grad;
  uint32_t stream = 500 * rank;
  for (const auto& item : model.named_parameters()) {
    torch::Tensor parameter = item.value();
    const auto fan_in = parameter.numel() / (parameter.dim() == 1 ? 1 : parameter.size(0));
    const bool scales = parameter.dim() == 1 && std::string_view(item.key()).ends_with("weight");
    parameter.copy_(real(stream++, parameter.sizes(), std::sqrt(fan_in), scales ? 1 : 0));
  }
}

}  // namespace lockstep::parity
