// The learning rates and seeds of several ranks.
#include "train/seed.h"

#include <cstdlib>
#include <gtest/gtest.h>
#include <set>

#include <lockstep/lockstep.h>
#include <lockstep/train.h>

#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

std::vector<at::Tensor> drawn_by_all(ProcessGroup& group) { return group.all_gather(torch::randn({64})); }

TEST(ScaledLr, GrowsWithTheWorld) {
  run_ranks(3, "shm", [](ProcessGroup& group) {
    EXPECT_DOUBLE_EQ(scaled_lr(0.1, group), 0.1 * 3);
    EXPECT_DOUBLE_EQ(scaled_lr(0.1, default_group()), 0.1 * 3);
    EXPECT_DOUBLE_EQ(scaled_lr(0.1), 0.1 * 3);
    EXPECT_THROW(scaled_lr(0.1, std::shared_ptr<ProcessGroup>()), UsageError);
  });
}

TEST(ScaledLr, IsTheBaseInAWorldOfOne) {
  run_ranks(1, "auto", [](ProcessGroup& group) { EXPECT_EQ(scaled_lr(0.1, group), 0.1); });
}

TEST(Seeds, DifferFromRankToRankAndRepeat) {
  run_ranks(3, "shm", [](ProcessGroup& group) {
    const auto seed = seed_everything(7, group);
    const auto first = drawn_by_all(group);
    const int number = std::rand();
    for (size_t a = 0; a < first.size(); ++a) {
      for (size_t b = 0; b < a; ++b) EXPECT_FALSE(at::equal(first[a], first[b])) << a << " and " << b;
    }
    EXPECT_EQ(seed_everything(7, default_group()), seed);
    EXPECT_TRUE(at::equal(drawn_by_all(group)[group.rank()], first[group.rank()]));
    EXPECT_EQ(std::rand(), number);
    EXPECT_NE(seed_everything(8), seed);
    EXPECT_FALSE(at::equal(drawn_by_all(group)[group.rank()], first[group.rank()]));
    EXPECT_THROW(seed_everything(7, std::shared_ptr<ProcessGroup>()), UsageError);
  });
}

TEST(Seeds, AreTheSameForAllOnRequest) {
  run_ranks(3, "shm", [](ProcessGroup& group) {
    EXPECT_EQ(seed_everything(7, group, Seeds::Same), 7U);
    const auto all = drawn_by_all(group);
    for (const auto& theirs : all) EXPECT_TRUE(at::equal(theirs, all.front()));
    torch::manual_seed(7);
    EXPECT_TRUE(at::equal(torch::randn({64}), all.front()));
  });
}

TEST(Seeds, OfARankDoNotDependOnTheWorldSize) {
  // These values must be the same in every version and on every machine, so that runs can be repeated.
  static constexpr uint64_t kOfRank1 = 7191089603641556244U;
  run_ranks(1, "auto", [](ProcessGroup& group) { EXPECT_EQ(seed_everything(7, group), 7U); });
  run_ranks(2, "shm", [](ProcessGroup& group) {
    EXPECT_EQ(seed_everything(7, group), group.rank() == 0 ? 7U : kOfRank1);
  });
}

// So that a ported program can be compared with the original.
TEST(Seeds, OfRank0AreThoseOfThePlainProgram) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    for (const uint64_t seed : {uint64_t{1}, uint64_t{0xfffffffffffffff0U}}) {
      EXPECT_EQ(seed_everything(seed, group) == seed, group.rank() == 0);
      const auto drawn = torch::randn({64});
      torch::manual_seed(seed);
      EXPECT_EQ(at::equal(torch::randn({64}), drawn), group.rank() == 0);
    }
  });
}

// LibTorch's generator uses the lower 32 bits, which must differ between all ranks. They must also differ
// from rank 0's seed in another run, if that seed is small, as most are.
TEST(Seeds, OfAThousandRanksNeverMeet) {
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{42}, uint64_t{0x80000000U}, ~uint64_t{0}}) {
    std::set<uint32_t> low;
    for (int rank = 0; rank < 1000; ++rank) {
      const auto mine = static_cast<uint32_t>(train::seed_of(seed, rank));
      EXPECT_TRUE(low.insert(mine).second) << "seed " << seed << ", rank " << rank;
      EXPECT_TRUE(rank == 0 || seed >= 0x80000000U || mine >= 0x80000000U) << seed << " " << rank;
    }
  }
}

// Careless seeding leads to different weights and the same dropout. It must be the other way round.
TEST(Seeds, BeforeTheModelGiveEqualWeightsAndDifferentDropout) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    seed_everything(7, group);
    torch::nn::Sequential model(torch::nn::Linear(8, 8), torch::nn::Dropout(0.5));
    DistributedDataParallel ddp(model, default_group());
    const auto weights = group.all_gather(model->parameters().front().detach());
    EXPECT_TRUE(at::equal(weights[0], weights[1]));
    const auto outputs = group.all_gather(ddp(torch::ones({16, 8})).detach());
    EXPECT_FALSE(at::equal(outputs[0].eq(0), outputs[1].eq(0)));
  });
}

}  // namespace
}  // namespace lockstep::testing
