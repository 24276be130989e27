// Some elements of gradients, to notice whether a program has changed them since.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::reducer {

class Samples {
 public:
  void clear() { of_.clear(); }
  void take(size_t parameter, const at::Tensor& gradient);

  // The first parameter whose gradient is still in the same memory, with other values; SIZE_MAX if there is
  // none.
  template <class GradientOf>
  size_t changed(const GradientOf& gradient_of) const {
    for (const auto& each : of_) {
      const at::Tensor& gradient = gradient_of(each.parameter);
      if (gradient.defined() && gradient.data_ptr() == each.data && read(gradient) != each.bytes) {
        return each.parameter;
      }
    }
    return SIZE_MAX;
  }

 private:
  struct Sampled {
    size_t parameter;
    const void* data;
    std::vector<std::byte> bytes;
  };
  static std::vector<std::byte> read(const at::Tensor& gradient);

  std::vector<Sampled> of_;
};

}  // namespace lockstep::reducer
