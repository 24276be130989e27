// DataParallel gives the same results as the module alone: outputs, gradients, training.
#include <functional>
#include <gtest/gtest.h>

#include "data_parallel/nets.h"

namespace lockstep::testing {
namespace {

class Replicas : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(DataParallel, Replicas, ::testing::Values(1, 2, 3, 5));

TEST_P(Replicas, OutputsAndGradientsAreThoseOfTheModuleAlone) {
  const auto alone = make(), model = make();
  DataParallel dp(model, {.replicas = GetParam()});
  EXPECT_EQ(dp.replicas(), GetParam());
  for (const int64_t rows : {2, 3, 4, 7, 16}) {  // also fewer than the replicas, and not multiples of them
    SCOPED_TRACE(rows);
    alone->zero_grad();
    model->zero_grad();
    const auto expected = alone->forward(batch_of(rows)), output = dp(batch_of(rows));
    expect_close(output, expected);
    loss_of(expected).backward();
    loss_of(output).backward();
    expect_close(gradients_of(*model), gradients_of(*alone));
  }
}

TEST_P(Replicas, TenStepsOfTrainingAreThoseOfTheModuleAlone) {
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const Tensors&)>;
  const Make kinds[] = {[](const Tensors& all) {
                          return std::make_unique<torch::optim::SGD>(
                              all, torch::optim::SGDOptions(0.05).momentum(0.9));
                        },
                        [](const Tensors& all) {
                          return std::make_unique<torch::optim::Adam>(all, torch::optim::AdamOptions(1e-2));
                        }};
  for (const auto& kind : kinds) {
    const auto alone = make();
    DataParallel dp(make(), {.replicas = GetParam()});
    const auto reference = kind(alone->parameters()), optimizer = kind(dp.parameters());
    for (int step = 0; step < 10; ++step) {
      reference->zero_grad();
      loss_of(alone->forward(batch_of(13, step))).backward();
      reference->step();
      optimizer->zero_grad();
      loss_of(dp(batch_of(13, step))).backward();
      optimizer->step();
    }
    expect_close(dp.parameters(), alone->parameters(), 1e-4);
  }
}

TEST(DataParallel, EmptyAndSingleRowBatchesWork) {
  const auto alone = make();
  DataParallel dp(make(), {.replicas = 3});
  for (const int64_t rows : {0, 1}) {
    expect_close(dp(batch_of(rows)), alone->forward(batch_of(rows)));
    dp(batch_of(rows)).sum().backward();
  }
}

TEST(DataParallel, SeveralForwardsMayComeBeforeOneBackward) {
  const auto alone = make(), model = make();
  DataParallel dp(model, {.replicas = 2});
  (loss_of(alone->forward(batch_of(6))) + loss_of(alone->forward(batch_of(9, 1)))).backward();
  const auto first = loss_of(dp(batch_of(6))), second = loss_of(dp(batch_of(9, 1)));
  (first + second).backward();
  expect_close(gradients_of(*model), gradients_of(*alone));
}

TEST(DataParallel, GradientsAccumulateOverBackwards) {
  const auto alone = make(), model = make();
  DataParallel dp(model, {.replicas = 2});
  for (int step = 0; step < 3; ++step) {
    loss_of(alone->forward(batch_of(8, step))).backward();
    loss_of(dp(batch_of(8, step))).backward();
  }
  expect_close(gradients_of(*model), gradients_of(*alone));
}

TEST(DataParallel, GradientsReachTheInput) {
  DataParallel dp(make(), {.replicas = 2});
  auto here = batch_of(7).requires_grad_(), there = batch_of(7).requires_grad_();
  loss_of(make()->forward(here)).backward();
  loss_of(dp(there)).backward();
  expect_close(there.grad(), here.grad());
}

TEST(DataParallel, GradientsOfGradientsAreThoseOfTheModuleAlone) {
  const auto alone = make(), model = make();
  DataParallel dp(model, {.replicas = 2});
  const auto penalty = [](const at::Tensor& loss, Net& net) {
    const auto gradients = torch::autograd::grad({loss}, net.parameters(), {}, true, /*create_graph=*/true);
    auto sum = torch::zeros({});
    for (const auto& gradient : gradients) sum = sum + gradient.pow(2).sum();
    sum.backward();
  };
  penalty(loss_of(alone->forward(batch_of(6))), *alone);
  penalty(loss_of(dp(batch_of(6))), *model);
  expect_close(gradients_of(*model), gradients_of(*alone));
}

TEST(DataParallel, AnUnfrozenParameterIsTrainedAndAFrozenOneIsNot) {
  const auto model = make();
  model->first->weight.set_requires_grad(false);
  DataParallel dp(model, {.replicas = 2});
  loss_of(dp(batch_of(4))).backward();
  EXPECT_FALSE(model->first->weight.grad().defined());

  model->first->weight.set_requires_grad(true);
  model->second->weight.set_requires_grad(false);
  model->zero_grad(true);
  loss_of(dp(batch_of(4))).backward();
  EXPECT_FALSE(model->second->weight.grad().defined());

  const auto alone = make();
  alone->second->weight.set_requires_grad(false);
  loss_of(alone->forward(batch_of(4))).backward();
  expect_close(gradients_of(*model), gradients_of(*alone));
}

TEST(DataParallel, AModuleOfAnotherTypeOfNumbersIsFollowed) {
  const auto model = make();
  DataParallel dp(model, {.replicas = 2});
  loss_of(dp(batch_of(4))).backward();
  model->zero_grad(true);
  model->to(at::kDouble);
  const auto output = dp(batch_of(4).to(at::kDouble));
  EXPECT_EQ(output.scalar_type(), at::kDouble);
  loss_of(output).backward();
  EXPECT_EQ(model->scale.grad().scalar_type(), at::kDouble);
}

TEST(DataParallel, NewValuesAndMemoryOfParametersAreFollowed) {
  const auto alone = make(2), model = make(1);
  DataParallel dp(model, {.replicas = 2});
  dp(batch_of(4));
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < model->parameters().size(); ++i) {
    model->parameters()[i].set_data(alone->parameters()[i].clone());
  }
  expect_close(dp(batch_of(4)), alone->forward(batch_of(4)));
}

// A module whose first replica returns an output without a graph.
struct Half : torch::nn::Cloneable<Half> {
  Half() { reset(); }
  void reset() override { linear = register_module("linear", torch::nn::Linear(8, 4)); }
  at::Tensor forward(const at::Tensor& x) {
    const auto output = linear->forward(torch::relu(linear->weight).matmul(x.t()).t().matmul(linear->weight));
    return x[0][0].item<float>() == 0 ? output.detach() : output;
  }
  torch::nn::Linear linear{nullptr};
};

// As without DataParallel. Otherwise the gradients would belong to values that no longer exist.
TEST(DataParallel, AParameterThatChangesBetweenForwardAndBackwardIsAnErrorInTheCopiesToo) {
  const auto model = make<Half>();
  DataParallel dp(model, {.replicas = 2});
  loss_of(dp(batch_of(4))).backward();
  const auto loss = loss_of(dp(batch_of(4)));
  {
    const torch::NoGradGuard no_grad;
    model->linear->weight.mul_(2);
  }
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(DataParallel, HooksOfParametersSeeTheSumOverTheReplicas) {
  const auto alone = make(), model = make();
  DataParallel dp(model, {.replicas = 3});
  at::Tensor seen;
  int calls = 0;
  model->second->weight.register_hook([&](const at::Tensor& gradient) {
    seen = gradient;
    ++calls;
  });
  loss_of(alone->forward(batch_of(9))).backward();
  loss_of(dp(batch_of(9))).backward();
  EXPECT_EQ(calls, 1);
  expect_close(seen, alone->second->weight.grad());
}

struct Tied : torch::nn::Cloneable<Tied> {
  Tied() { reset(); }
  void reset() override {
    weight = register_parameter("weight", torch::randn({8, 8}));
    inner = register_module("inner", torch::nn::Linear(8, 8));
  }
  at::Tensor forward(const at::Tensor& x) { return inner->forward(x.matmul(weight)).matmul(weight.t()); }
  at::Tensor weight;
  torch::nn::Linear inner{nullptr};
};

TEST(DataParallel, AParameterThatIsUsedTwiceGetsBothGradients) {
  const auto alone = make<Tied>(), model = make<Tied>();
  DataParallel dp(model, {.replicas = 2});
  loss_of(alone->forward(batch_of(6))).backward();
  loss_of(dp(batch_of(6))).backward();
  expect_close(gradients_of(*model), gradients_of(*alone));
}

struct Lookup : torch::nn::Cloneable<Lookup> {
  Lookup() { reset(); }
  void reset() override {
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true)));
  }
  at::Tensor forward(const at::Tensor& index) { return table->forward(index); }
  torch::nn::Embedding table{nullptr};
};

TEST(DataParallel, SparseGradientsAreSummed) {
  const auto alone = make<Lookup>(), model = make<Lookup>();
  DataParallel dp(model, {.replicas = 2});
  const auto index = torch::tensor({1, 2, 2, 9, 1});
  loss_of(alone->forward(index)).backward();
  loss_of(dp(index)).backward();
  ASSERT_TRUE(model->table->weight.grad().is_sparse());
  expect_close(model->table->weight.grad().to_dense(), alone->table->weight.grad().to_dense());
}

TEST(DataParallel, WhatForwardDoesToItsInputInPlaceIsRight) {
  struct InPlace : torch::nn::Cloneable<InPlace> {
    InPlace() { reset(); }
    void reset() override { bias = register_parameter("bias", torch::ones({8})); }
    at::Tensor forward(at::Tensor x) { return x.mul_(2).add_(bias); }
    at::Tensor bias;
  };
  const auto alone = make<InPlace>(), model = make<InPlace>();
  DataParallel dp(model, {.replicas = 4});
  const auto weight = torch::ones({8}).requires_grad_(), other = torch::ones({8}).requires_grad_();
  loss_of(alone->forward(batch_of(9))).backward();
  loss_of(dp(batch_of(9))).backward();
  loss_of(alone->forward(batch_of(9) * weight)).backward();
  loss_of(dp(batch_of(9) * other)).backward();
  expect_close(model->bias.grad(), alone->bias.grad());
  expect_close(other.grad(), weight.grad());
}

}  // namespace
}  // namespace lockstep::testing
