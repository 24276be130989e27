// A digest of a model's parameters: models that are bitwise the same have the same digest.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <torch/types.h>

// 64-bit FNV-1a over the bytes of all parameters, in order.
inline uint64_t digest_of(const std::vector<torch::Tensor>& parameters) {
  uint64_t hash = 14695981039346656037U;
  for (const auto& parameter : parameters) {
    const auto dense = parameter.detach().contiguous();
    const auto* bytes = static_cast<const uint8_t*>(dense.data_ptr());
    for (size_t i = 0; i < dense.nbytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211U;
  }
  return hash;
}

inline std::string to_hex(uint64_t digest) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(digest));
  return text.data();
}
