// Small models and helpers for the tests of DistributedDataParallel.
#pragma once

#include <gtest/gtest.h>
#include <string>
#include <vector>

#include <lockstep/lockstep.h>

#include "support/run_ranks.h"

namespace lockstep::testing {

using Tensors = std::vector<at::Tensor>;

struct Net : torch::nn::Module {
  explicit Net(int64_t hidden = 16)
      : first(register_module("first", torch::nn::Linear(8, hidden))),
        second(register_module("second", torch::nn::Linear(hidden, hidden))),
        third(register_module("third", torch::nn::Linear(hidden, 4))) {}
  at::Tensor forward(at::Tensor x) {
    x = torch::relu(first->forward(x));
    x = torch::relu(second->forward(x));
    return third->forward(x);
  }
  torch::nn::Linear first, second, third;
};

inline std::shared_ptr<Net> make_net(uint64_t seed = 1) {
  torch::manual_seed(seed);
  return std::make_shared<Net>();
}

// The same on all ranks, different for each step. A rank's share is a slice of it.
inline at::Tensor global_batch(int64_t rows, int step) {
  return torch::sin(torch::arange(rows * 8, at::kFloat).view({rows, 8}) * 0.37 + step);
}
inline at::Tensor targets_of(const at::Tensor& batch) {
  return torch::stack({batch.sum(1), batch.select(1, 0), batch.prod(1), batch.pow(2).mean(1)}, 1);
}
inline at::Tensor share_of(const at::Tensor& batch, const ProcessGroup& group) {
  const auto rows = batch.size(0) / group.world_size();
  return batch.narrow(0, group.rank() * rows, rows);
}
inline at::Tensor loss_of(const at::Tensor& output, const at::Tensor& batch) {
  return torch::mse_loss(output, targets_of(batch));
}

// Bitwise equal; undefined tensors are equal.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && at::equal(a, b);
}

inline void expect_same_on_all_ranks(ProcessGroup& group, const Tensors& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto mine = tensors[i].detach().to_dense().contiguous();
    const auto all = group.all_gather(mine);
    for (size_t rank = 0; rank < all.size(); ++rank) {
      EXPECT_TRUE(same_bits(all[rank], mine)) << "tensor " << i << " of rank " << rank;
    }
  }
}

inline Tensors gradients_of(const Tensors& parameters) {
  Tensors gradients;
  for (const auto& parameter : parameters) gradients.push_back(parameter.grad());
  return gradients;
}

inline void expect_close(const Tensors& a, const Tensors& b, double tolerance = 1e-5) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::allclose(a[i].detach().to_dense(), b[i].detach().to_dense(), tolerance, tolerance))
        << "tensor " << i << ", greatest difference " << (a[i] - b[i]).abs().max().item<double>();
  }
}

// Drops gradients, as torch::nn::Module::zero_grad(true) does in all versions.
inline void drop_gradients(const Tensors& parameters) {
  for (const auto& parameter : parameters) parameter.mutable_grad() = at::Tensor();
}

using World = std::tuple<const char*, int>;  // the backend and the number of ranks

// Runs the body in groups of several backends and world sizes.
class DdpTest : public ::testing::TestWithParam<World> {
 protected:
  void run(const std::function<void(ProcessGroup& group)>& body) {
    run_ranks(std::get<1>(GetParam()), std::get<0>(GetParam()), body);
  }
  int world() const { return std::get<1>(GetParam()); }
};

inline std::string name_of_world(const ::testing::TestParamInfo<World>& info) {
  return std::string(std::get<0>(info.param)) + std::to_string(std::get<1>(info.param));
}

#define LOCKSTEP_DDP_WORLDS(suite, ...) \
  INSTANTIATE_TEST_SUITE_P(Worlds, suite, ::testing::Values(__VA_ARGS__), name_of_world)

}  // namespace lockstep::testing
