// Decisions of all ranks, and LBFGS, which makes such a decision in every iteration.
#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include <lockstep/lockstep.h>

#include "ddp/training.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

class Decisions : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Backends, Decisions, ::testing::Values("shm", "gloo"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(Decisions, AreTheSameOnAllRanks) {
  run_ranks(3, GetParam(), [](ProcessGroup& group) {
    const bool first = group.rank() == 0;
    EXPECT_TRUE(all_agree(true, group));
    EXPECT_FALSE(all_agree(first, group));
    EXPECT_FALSE(all_agree(false, group));
    EXPECT_TRUE(any(true, group));
    EXPECT_TRUE(any(first, group));
    EXPECT_FALSE(any(false, group));
    EXPECT_FALSE(all_agree(!first));
    EXPECT_TRUE(any(!first));

    // Three numbers whose sum depends on the order of the additions.
    const double mine[] = {1e16, 1.0, -1e16};
    const double expected = ((1e16 + 1.0) - 1e16) / 3;
    EXPECT_EQ(mean(mine[group.rank()], group), expected);
    EXPECT_EQ(mean(mine[group.rank()]), expected);
    EXPECT_TRUE(std::isnan(mean(first ? std::nan("") : 1, group)));
    EXPECT_EQ(mean(first ? std::numeric_limits<double>::infinity() : 1, group),
              std::numeric_limits<double>::infinity());

    EXPECT_THROW(any(true, std::shared_ptr<ProcessGroup>()), UsageError);
    EXPECT_THROW(all_agree(true, std::shared_ptr<ProcessGroup>()), UsageError);
    EXPECT_THROW(mean(1, std::shared_ptr<ProcessGroup>()), UsageError);
    EXPECT_THROW(averaged([] { return torch::ones({}); }, std::shared_ptr<ProcessGroup>()), UsageError);
    EXPECT_THROW(averaged({}), UsageError);
  });
}

TEST(AveragedClosure, ReturnsTheMeanInTheKindOfTheLoss) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    const auto closure = averaged([&] { return torch::full({}, group.rank() + 1.0, at::kFloat); });
    const auto loss = closure();
    EXPECT_EQ(loss.item<double>(), 1.5);
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
  });
}

constexpr int kLbfgsSteps = 4;

torch::optim::LBFGSOptions searching() {
  return torch::optim::LBFGSOptions(1).max_iter(6).line_search_fn("strong_wolfe");
}

std::shared_ptr<Net> double_net() {
  auto net = make_net();
  net->to(at::kDouble);
  return net;
}

at::Tensor double_batch() { return global_batch(12, 0).to(at::kDouble); }

// The reference: one process with the whole batch.
Tensors trained_alone(int& evaluations) {
  const auto net = double_net();
  torch::optim::LBFGS optimizer(net->parameters(), searching());
  for (int step = 0; step < kLbfgsSteps; ++step) {
    optimizer.step([&] {
      ++evaluations;
      optimizer.zero_grad();
      const auto loss = loss_of(net->forward(double_batch()), double_batch());
      loss.backward();
      return loss;
    });
  }
  return net->parameters();
}

TEST_P(Decisions, OfLbfgsAreThoseOfOneProcessOnTheWholeBatch) {
  run_ranks(2, GetParam(), [](ProcessGroup& group) {
    const auto net = double_net();
    DistributedDataParallel ddp(net, default_group());
    torch::optim::LBFGS optimizer(ddp.parameters(), searching());
    const auto batch = share_of(double_batch(), group);
    int evaluations = 0, alone = 0;
    for (int step = 0; step < kLbfgsSteps; ++step) {
      optimizer.step(averaged([&] {
        ++evaluations;
        optimizer.zero_grad();
        const auto loss = loss_of(ddp(batch), batch);
        loss.backward();
        return loss;
      }));
    }
    expect_same_on_all_ranks(group, net->parameters());
    expect_close(net->parameters(), trained_alone(alone), 1e-7);
    EXPECT_EQ(evaluations, alone);
    EXPECT_GT(evaluations, kLbfgsSteps);
  });
}

}  // namespace
}  // namespace lockstep::testing
