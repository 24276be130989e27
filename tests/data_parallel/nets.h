// Copyable modules and comparisons for the tests of DataParallel.
#pragma once

#include <gtest/gtest.h>
#include <memory>
#include <vector>

#include <torch/torch.h>

#include <lockstep/data_parallel.h>

namespace lockstep::testing {

using Tensors = std::vector<at::Tensor>;

struct Net : torch::nn::Cloneable<Net> {
  Net() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(8, 16));
    second = register_module("second", torch::nn::Linear(16, 4));
    scale = register_parameter("scale", torch::ones({4}));
  }
  at::Tensor forward(at::Tensor x) { return second->forward(torch::relu(first->forward(x))) * scale; }
  torch::nn::Linear first{nullptr}, second{nullptr};
  at::Tensor scale;
};

template <class Module = Net>
std::shared_ptr<Module> make(uint64_t seed = 1) {
  torch::manual_seed(seed);
  return std::make_shared<Module>();
}

inline at::Tensor batch_of(int64_t rows, int step = 0) {
  return torch::sin(torch::arange(rows * 8, at::kFloat).view({rows, 8}) * 0.37 + step);
}
inline at::Tensor loss_of(const at::Tensor& output) { return (output - 0.5).pow(2).mean(); }

inline void expect_close(const at::Tensor& a, const at::Tensor& b, double tolerance = 1e-5) {
  ASSERT_EQ(a.defined(), b.defined());
  if (!a.defined()) return;
  ASSERT_EQ(a.sizes(), b.sizes());
  EXPECT_TRUE(torch::allclose(a, b, tolerance, tolerance)) << (a - b).abs().max();
}
inline void expect_close(const Tensors& a, const Tensors& b, double tolerance = 1e-5) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    SCOPED_TRACE(i);
    expect_close(a[i], b[i], tolerance);
  }
}
inline Tensors gradients_of(const torch::nn::Module& module) {
  Tensors gradients;
  for (const auto& parameter : module.parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

}  // namespace lockstep::testing
