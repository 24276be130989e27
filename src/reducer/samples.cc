#include "reducer/samples.h"

#include <algorithm>
#include <cstring>

namespace lockstep::reducer {

namespace {

// Some may be zero, which scaling does not change.
constexpr int64_t kElements = 16;

}  // namespace

void Samples::take(size_t parameter, const at::Tensor& gradient) {
  of_.push_back({parameter, gradient.data_ptr(), read(gradient)});
}

// In the order of memory: gradients in buckets are dense.
std::vector<std::byte> Samples::read(const at::Tensor& gradient) {
  const auto count = std::min(gradient.numel(), kElements);
  const auto size = gradient.itemsize();
  std::vector<std::byte> bytes(count * size);
  for (int64_t i = 0; i < count; ++i) {
    const auto* const from =
        static_cast<const std::byte*>(gradient.data_ptr()) + gradient.numel() * i / count * size;
    std::memcpy(bytes.data() + i * size, from, size);
  }
  return bytes;
}

}  // namespace lockstep::reducer
