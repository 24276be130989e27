// clip_grad_norm_: norms and scaled gradients compared with the formula, identical bits on all ranks, and
// gradients of all kinds.
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

#include <ATen/Parallel.h>

#include <lockstep/lockstep.h>
#include <lockstep/train.h>

#include "ddp/training.h"
#include "support/message_of.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

at::Tensor with_gradient(const at::Tensor& gradient) {
  auto parameter = torch::zeros(gradient.sizes(), gradient.options().layout(at::kStrided)).requires_grad_();
  parameter.mutable_grad() = gradient;
  return parameter;
}

// Tensors of several sizes: below, at and above the size of a summation block.
Tensors some_parameters(double factor = 1) {
  torch::manual_seed(3);
  Tensors parameters;
  for (const int64_t size : {1, 15, 16, 17, 1000, 16384, 16385, 100003}) {
    parameters.push_back(with_gradient(torch::randn({size}) * factor));
  }
  return parameters;
}

at::Tensor all_elements(const Tensors& parameters) {
  Tensors flat;
  for (const auto& parameter : parameters)
    flat.push_back(parameter.grad().to_dense().reshape({-1}).to(at::kDouble));
  return at::cat(flat).clone();
}

double norm_by_formula(const at::Tensor& elements, double type) {
  if (type == kInfinity) return elements.abs().max().item<double>();
  return std::pow(elements.abs().pow(type).sum().item<double>(), 1 / type);
}

class EachNorm : public ::testing::TestWithParam<double> {};

TEST_P(EachNorm, IsThatOfAllGradientsAsOneVectorAndScalesThemToTheLimit) {
  const double type = GetParam();
  const auto parameters = some_parameters();
  const auto before = all_elements(parameters);
  const double expected = norm_by_formula(before, type);
  const double limit = expected / 3;
  EXPECT_NEAR(clip_grad_norm_(parameters, limit, type), expected, expected * 1e-9);
  const auto after = all_elements(parameters);
  EXPECT_NEAR(norm_by_formula(after, type), limit, limit * 1e-5);
  EXPECT_TRUE(at::allclose(after, before * (limit / (expected + 1e-6)), 1e-6, 1e-12));
}

TEST_P(EachNorm, WithinTheLimitLeavesEveryBit) {
  const auto parameters = some_parameters();
  const auto before = all_elements(parameters);
  const double norm = clip_grad_norm_(parameters, 1e12, GetParam());
  EXPECT_EQ(clip_grad_norm_(parameters, kInfinity, GetParam()), norm);
  EXPECT_TRUE(at::equal(all_elements(parameters), before));
}

INSTANTIATE_TEST_SUITE_P(Types, EachNorm, ::testing::Values(2.0, 1.0, 3.0, 0.5, kInfinity));

TEST(Clip, EqualsLibTorchsOwn) {
  const auto mine = some_parameters(), theirs = some_parameters();
  for (const double type : {2.0, 1.0, 4.0, kInfinity}) {
    const double expected = torch::nn::utils::clip_grad_norm_(theirs, 0.5, type);
    EXPECT_NEAR(clip_grad_norm_(mine, 0.5, type), expected, expected * 1e-4);
    EXPECT_TRUE(at::allclose(all_elements(mine), all_elements(theirs), 1e-4, 1e-9));
  }
}

TEST(Clip, GivesTheSameBitsForAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  std::vector<double> norms;
  for (const int count : {1, 2, 3, 7}) {
    at::set_num_threads(count);
    norms.push_back(clip_grad_norm_(some_parameters(), 0.1));
  }
  at::set_num_threads(threads);
  for (const double norm : norms) EXPECT_EQ(norm, norms.front());
}

TEST(Clip, KeepsReplicasEqualToTheBit) {
  run_ranks(3, "shm", [](ProcessGroup& group) {
    at::set_num_threads(1 + group.rank());
    DistributedDataParallel ddp(std::make_shared<Net>(256), default_group());
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      const auto mine = share_of(global_batch(12, step), group);
      loss_of(ddp(mine), mine).backward();
      const double norm = clip_grad_norm_(ddp.parameters(), 0.05);
      EXPECT_GT(norm, 0.05);
      expect_same_on_all_ranks(group, {at::tensor({norm}, at::kDouble)});
      expect_same_on_all_ranks(group, gradients_of(ddp.parameters()));
      optimizer.step();
    }
    ddp.verify_replicas();
  });
}

TEST(Clip, TakesGradientsOfDifferentTypesTogether) {
  const auto full = [](double value, at::ScalarType type) {
    return with_gradient(torch::full({4}, value, type));
  };
  const Tensors parameters = {full(1, at::kFloat), full(2, at::kDouble), full(3, at::kHalf),
                              full(4, at::kBFloat16)};
  const double expected = std::sqrt(4.0 * (1 + 4 + 9 + 16));
  EXPECT_DOUBLE_EQ(clip_grad_norm_(parameters, expected / 2), expected);
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_NEAR(parameters[i].grad()[0].item<double>(), (i + 1) / 2.0, 1e-2) << i;
  }
  EXPECT_EQ(parameters[2].grad().scalar_type(), at::kHalf);
}

TEST(Clip, DoesNotOverflowInLowPrecision) {
  const Tensors parameters = {with_gradient(torch::full({10000}, 60000.0, at::kHalf)),
                              with_gradient(torch::full({1}, 3e38F))};
  EXPECT_NEAR(clip_grad_norm_(parameters, 1.0), 3e38, 1e32);
  EXPECT_NEAR(parameters[1].grad().item<double>(), 1, 1e-6);
}

TEST(Clip, TakesComplexGradientsByTheirAbsoluteValue) {
  const auto parameter = with_gradient(torch::complex(torch::full({4}, 3.0), torch::full({4}, 4.0)));
  EXPECT_NEAR(clip_grad_norm_({parameter}, 1.0), 10, 1e-6);
  EXPECT_NEAR(clip_grad_norm_({parameter}, 1.0, kInfinity), 0.5, 1e-6);
}

TEST(Clip, LeavesOutUndefinedGradientsAndParameters) {
  const auto without = torch::zeros({3}).requires_grad_();
  EXPECT_EQ(clip_grad_norm_({}, 1.0), 0);
  EXPECT_EQ(clip_grad_norm_({without, at::Tensor()}, 1.0), 0);
  EXPECT_FALSE(without.grad().defined());
  EXPECT_EQ(clip_grad_norm_({without, with_gradient(torch::full({1}, 5.0)), at::Tensor()}, 1.0), 5);
  EXPECT_EQ(clip_grad_norm_({with_gradient(torch::zeros({0}))}, 1.0, kInfinity), 0);
}

TEST(Clip, CountsASharedParameterOnce) {
  const auto parameter = with_gradient(torch::full({1}, 4.0));
  EXPECT_EQ(clip_grad_norm_({parameter, parameter}, 1.0), 4);
  EXPECT_NEAR(parameter.grad().item<double>(), 1, 1e-6);
}

TEST(Clip, AddsUpTheEntriesOfASparseGradient) {
  // Element 1 has two entries, which add up to 3. With 4 in element 5 the norm is 5.
  const auto indices = at::tensor({1, 5, 1}, at::kLong).view({1, 3});
  const auto parameter =
      with_gradient(torch::sparse_coo_tensor(indices, at::tensor({1.0F, 4.0F, 2.0F}), {8}));
  EXPECT_DOUBLE_EQ(clip_grad_norm_({parameter}, 1.0), 5);
  const auto dense = parameter.grad().to_dense();
  EXPECT_TRUE(parameter.grad().is_sparse());
  EXPECT_NEAR(dense[1].item<double>(), 0.6, 1e-6);
  EXPECT_NEAR(dense[5].item<double>(), 0.8, 1e-6);
  EXPECT_NEAR(clip_grad_norm_({parameter}, 9.0, kInfinity), 0.8, 1e-6);
}

TEST(Clip, ClipsTheSparseGradientsOfAnEmbedding) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true));
    DistributedDataParallel ddp(embedding, default_group());
    ddp(at::tensor({1, 1, 2 + group.rank()}, at::kLong)).sum().backward();
    const auto parameters = ddp.parameters();
    const double expected = norm_by_formula(all_elements(parameters), 2);
    EXPECT_NEAR(clip_grad_norm_(parameters, 0.25), expected, 1e-6);
    EXPECT_NEAR(norm_by_formula(all_elements(parameters), 2), 0.25, 1e-5);
    expect_same_on_all_ranks(group, gradients_of(parameters));
  });
}

TEST(Clip, TakesAnyStrides) {
  const auto whole = torch::randn({4, 6, 5, 5});
  const double expected = norm_by_formula(whole.reshape({-1}).to(at::kDouble), 2);
  const auto wide = torch::zeros({4, 12, 5, 5});
  for (const auto& gradient : {whole.contiguous(at::MemoryFormat::ChannelsLast), whole.transpose(0, 1),
                               wide.narrow(1, 0, 6).copy_(whole)}) {
    const auto parameter = with_gradient(gradient);
    EXPECT_NEAR(clip_grad_norm_({parameter}, 1.0), expected, expected * 1e-6);
    EXPECT_NEAR(norm_by_formula(all_elements({parameter}), 2), 1, 1e-5);
  }
  const auto expanded = with_gradient(torch::full({1}, 2.0).expand({9}));
  EXPECT_DOUBLE_EQ(clip_grad_norm_({expanded}, 3.0), 6);
  EXPECT_NEAR(norm_by_formula(all_elements({expanded}), 2), 3, 1e-5);
}

TEST(Clip, ALimitOfZeroMakesGradientsZero) {
  const auto parameter = with_gradient(torch::full({3}, 2.0));
  clip_grad_norm_({parameter}, 0);
  EXPECT_TRUE(parameter.grad().eq(0).all().item<bool>());
  clip_grad_norm_({parameter}, 1);
  EXPECT_TRUE(parameter.grad().eq(0).all().item<bool>());
}

TEST(Clip, ANormThatIsNotFiniteNamesTheParameterAndScalesNothing) {
  for (const double type : {2.0, 1.0, 3.0, kInfinity}) {
    for (const double bad : {kNaN, kInfinity, -kInfinity}) {
      auto parameters = some_parameters();
      parameters.insert(parameters.begin(), torch::zeros({2}).requires_grad_());
      parameters[4].mutable_grad()[9] = bad;
      parameters[6].mutable_grad()[0] = bad;
      const auto before = all_elements({parameters[1]});
      const auto message = message_of<Error>([&] { clip_grad_norm_(parameters, 1e-3, type, true); });
      EXPECT_THAT(message, AllOf(HasSubstr("parameter 4, Float [17]"), HasSubstr("hint:")));
      EXPECT_TRUE(at::equal(all_elements({parameters[1]}), before));
    }
  }
}

TEST(Clip, ANormThatIsNotFiniteSpreadsAsInPyTorchUnlessItIsRefused) {
  for (const double bad : {kNaN, kInfinity}) {
    const Tensors parameters = {with_gradient(torch::ones({2})), with_gradient(torch::full({1}, bad))};
    const auto twins = Tensors{with_gradient(torch::ones({2})), with_gradient(torch::full({1}, bad))};
    torch::nn::utils::clip_grad_norm_(twins, 1.0);
    EXPECT_FALSE(std::isfinite(clip_grad_norm_(parameters, 1.0)));
    EXPECT_TRUE(at::allclose(all_elements(parameters), all_elements(twins), 0, 0, /*equal_nan=*/true));
    // With an infinite max_norm, nothing is scaled.
    EXPECT_FALSE(
        std::isfinite(clip_grad_norm_({with_gradient(torch::full({1}, bad)), parameters[0]}, kInfinity)));
  }
}

TEST(Clip, RefusesWhatIsNoNormOrLimit) {
  const Tensors parameters = {with_gradient(torch::ones({2}))};
  for (const double type : {0.0, -1.0, -kInfinity, kNaN})
    EXPECT_THAT(message_of<UsageError>([&] { clip_grad_norm_(parameters, 1, type); }),
                HasSubstr("norm_type is"));
  for (const double limit : {-1.0, -kInfinity, kNaN})
    EXPECT_THAT(message_of<UsageError>([&] { clip_grad_norm_(parameters, limit); }),
                HasSubstr("max_norm is"));
  EXPECT_EQ(parameters[0].grad()[0].item<double>(), 1);
}

// In a process of its own: after a backward pass here, LibTorch 2 refuses one in the ranks that other tests
// fork.
TEST(Clip, LeavesNoTraceInTheGraph) {
  expect_success(start_ranks(1, [](int) {
    const auto parameter = torch::full({2}, 3.0).requires_grad_();
    parameter.pow(2).sum().backward();
    clip_grad_norm_({parameter}, 1.0);
    EXPECT_FALSE(parameter.grad().requires_grad());
  }));
}

}  // namespace
}  // namespace lockstep::testing
