// DistributedSampler: which rank gets which sample, how an epoch continues after an interruption (with any
// number of ranks), exact evaluation, and its use in data loaders. tests/parity/sampler compares it with
// Python's for many more settings.
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <numeric>
#include <random>
#include <sstream>
#include <thread>

#include <torch/torch.h>

#include <lockstep/sampler.h>

#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Samples = std::vector<size_t>;

Samples take(DistributedSampler& sampler, size_t count) {
  Samples taken;
  while (taken.size() < count) {
    const auto batch = sampler.next(std::min<size_t>(3, count - taken.size()));
    if (!batch) break;
    taken.insert(taken.end(), batch->begin(), batch->end());
  }
  return taken;
}

Samples rest_of(DistributedSampler& sampler) { return take(sampler, SIZE_MAX); }

Samples epoch_order(size_t dataset_size, const SamplerOptions& options, int64_t epoch) {
  Samples order(dataset_size);
  std::iota(order.begin(), order.end(), 0);
  if (!options.shuffle) return order;
  const auto drawn =
      at::randperm(static_cast<int64_t>(dataset_size),
                   at::detail::createCPUGenerator(options.seed + static_cast<uint64_t>(epoch)));
  for (size_t i = 0; i < dataset_size; ++i)
    order[i] = static_cast<size_t>(drawn[static_cast<int64_t>(i)].item<int64_t>());
  return order;
}

std::vector<DistributedSampler> all_ranks(size_t dataset_size, int world,
                                          const SamplerOptions& options = {}) {
  std::vector<DistributedSampler> ranks;
  for (int rank = 0; rank < world; ++rank) ranks.emplace_back(dataset_size, world, rank, options);
  return ranks;
}

// The samples of all ranks, in the order of the list that was distributed.
Samples in_rounds(const std::vector<Samples>& by_rank) {
  Samples dealt;
  for (size_t k = 0;; ++k) {
    bool any = false;
    for (const auto& mine : by_rank) {
      if (k >= mine.size()) continue;
      dealt.push_back(mine[k]);
      any = true;
    }
    if (!any) return dealt;
  }
}

template <class Body>
std::string usage_error_of(const Body& body) {
  try {
    body();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

// Each sample is its own index.
struct Numbers : torch::data::datasets::Dataset<Numbers, int64_t> {
  explicit Numbers(size_t size) : size_(size) {}
  int64_t get(size_t index) override { return static_cast<int64_t>(index); }
  torch::optional<size_t> size() const override { return size_; }
  size_t size_;
};

auto loader_of(const DistributedSampler& sampler, size_t dataset_size, size_t workers) {
  return torch::data::make_data_loader(Numbers(dataset_size), sampler,
                                       torch::data::DataLoaderOptions().batch_size(4).workers(workers));
}

template <class Loader>
Samples rest_of_loader(Loader& loader) {
  Samples seen;
  for (const auto& batch : loader) seen.insert(seen.end(), batch.begin(), batch.end());
  return seen;
}

// ---- assignment to ranks

TEST(SamplerTest, GivesTheIndicesThatPythonGives) {
  const auto given = [](size_t dataset_size, int world, int rank, SamplerOptions options, int64_t epoch) {
    DistributedSampler sampler(dataset_size, world, rank, options);
    sampler.set_epoch(epoch);
    return sampler.indices();
  };
  EXPECT_THAT(given(10, 3, 0, {.seed = 7}, 2), ElementsAre(0, 7, 9, 3));
  EXPECT_THAT(given(10, 3, 1, {.seed = 7}, 2), ElementsAre(5, 6, 1, 0));
  EXPECT_THAT(given(10, 3, 2, {.seed = 7}, 2), ElementsAre(8, 2, 4, 5));
  EXPECT_THAT(given(10, 3, 2, {.seed = 7, .drop_last = true}, 2), ElementsAre(8, 2, 4));
  EXPECT_THAT(given(7, 2, 1, {.shuffle = false}, 5), ElementsAre(1, 3, 5, 0));
  // Needs more padding than there are samples.
  EXPECT_THAT(given(2, 5, 4, {}, 0), ElementsAre(0));
}

TEST(SamplerTest, DealsTheOrderRoundByRound) {
  for (const size_t size : {0, 1, 2, 5, 12, 13, 100}) {
    for (const int world : {1, 2, 3, 7, 30}) {
      for (const bool shuffle : {true, false}) {
        for (const bool drop_last : {true, false}) {
          const SamplerOptions options{.shuffle = shuffle, .seed = 3, .drop_last = drop_last};
          const auto order = epoch_order(size, options, -1);
          const size_t rounds = (size + (drop_last ? 0 : world - 1)) / world;
          std::vector<Samples> by_rank;
          for (auto& sampler : all_ranks(size, world, options)) {
            sampler.set_epoch(-1);
            by_rank.push_back(sampler.indices());
            EXPECT_EQ(by_rank.back().size(), rounds);
            EXPECT_EQ(sampler.size(), rounds);
            EXPECT_EQ(rest_of(sampler), by_rank.back());
          }
          const auto dealt = in_rounds(by_rank);
          for (size_t i = 0; i < dealt.size(); ++i)
            ASSERT_EQ(dealt[i], order[i % size]) << size << ' ' << world;
        }
      }
    }
  }
}

TEST(SamplerTest, ExactGivesEverySampleOnceAndRanksDifferByAtMostOne) {
  for (const size_t size : {0, 1, 5, 12, 13, 100}) {
    for (const int world : {1, 2, 3, 7, 30}) {
      const SamplerOptions options{.exact = true};
      std::vector<Samples> by_rank;
      for (auto& sampler : all_ranks(size, world, options)) {
        by_rank.push_back(rest_of(sampler));
        EXPECT_EQ(sampler.size(), by_rank.back().size());
      }
      EXPECT_EQ(in_rounds(by_rank), epoch_order(size, options, 0));
      EXPECT_LE(by_rank.front().size() - by_rank.back().size(), 1);
    }
  }
}

TEST(SamplerTest, LeavesTheProgramsRandomNumbersAlone) {
  torch::manual_seed(5);
  const auto expected = torch::rand({8});
  torch::manual_seed(5);
  DistributedSampler sampler(1000, 2, 0);
  sampler.reset();
  sampler.indices();
  rest_of(sampler);
  EXPECT_TRUE(torch::equal(torch::rand({8}), expected));
}

size_t bytes_in_use() {
  const auto info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST(SamplerTest, AnOrderThatIsNotShuffledTakesNoMemory) {
  const auto before = bytes_in_use();
  DistributedSampler sampler(10'000'000, 4, 1, {.shuffle = false});
  sampler.reset();
  EXPECT_EQ(sampler.next(2), (Samples{1, 5}));
  EXPECT_LE(bytes_in_use(), before + 4096);
}

TEST(SamplerTest, OfAShuffledOrderOnlyThisRanksShareIsKept) {
  constexpr size_t kSize = 2'000'000;
  DistributedSampler sampler(kSize, 4, 1);
  sampler.reset(1000);  // for what LibTorch allocates once
  const auto before = bytes_in_use();
  for (int epoch = 0; epoch < 2; ++epoch) {
    sampler.reset(kSize);
    sampler.next(2);
    EXPECT_LE(bytes_in_use(), before + kSize / 4 * sizeof(uint32_t) + 65536);
  }
}

// ---- epochs and iterations

class SamplerLoaderTest : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Workers, SamplerLoaderTest, ::testing::Values(0, 2));

TEST_P(SamplerLoaderTest, SetEpochReachesTheLoadersCopy) {
  DistributedSampler sampler(50, 3, 1, {.seed = 4});
  auto loader = loader_of(sampler, 50, GetParam());
  for (const int64_t epoch : {0, 1, 7}) {
    sampler.set_epoch(epoch);
    EXPECT_EQ(sampler.position(), 0);
    DistributedSampler by_hand(50, 3, 1, {.seed = 4});
    by_hand.set_epoch(epoch);
    EXPECT_EQ(rest_of_loader(*loader), by_hand.indices());
    EXPECT_EQ(sampler.epoch(), epoch);
    EXPECT_EQ(sampler.position(), 17);
    EXPECT_EQ(sampler.state().consumed, 50);
  }
}

TEST_P(SamplerLoaderTest, ForgettingSetEpochRepeatsTheEpoch) {
  DistributedSampler sampler(50, 3, 1);
  auto loader = loader_of(sampler, 50, GetParam());
  const auto first = rest_of_loader(*loader);
  EXPECT_EQ(first.size(), 17);
  EXPECT_EQ(rest_of_loader(*loader), first);
}

TEST_P(SamplerLoaderTest, AnInterruptedEpochGoesOnInANewLoader) {
  constexpr size_t kSize = 200;
  DistributedSampler whole(kSize, 3, 2);
  whole.set_epoch(6);
  const auto expected = whole.indices();

  DistributedSampler sampler(kSize, 3, 2);
  sampler.set_epoch(6);
  Samples trained;
  SamplerState saved;
  {
    auto loader = loader_of(sampler, kSize, GetParam());
    for (const auto& batch : *loader) {
      trained.insert(trained.end(), batch.begin(), batch.end());
      sampler.advance(batch.size());
      // The workers have requested more by now.
      EXPECT_EQ(sampler.position(), trained.size());
      if (trained.size() == 20) break;
    }
    saved = sampler.state();
  }
  EXPECT_EQ(saved, (SamplerState{.epoch = 6, .consumed = 60, .dataset_size = kSize}));

  DistributedSampler again(kSize, 3, 2);
  auto loader = loader_of(again, kSize, GetParam());
  again.restore(saved);
  again.set_epoch(6);
  for (const auto& batch : *loader) {
    trained.insert(trained.end(), batch.begin(), batch.end());
    again.advance(batch.size());
    EXPECT_EQ(again.state().consumed, std::min(trained.size() * 3, kSize));
  }
  EXPECT_EQ(trained, expected);
  EXPECT_EQ(rest_of_loader(*loader), expected) << "without set_epoch the whole epoch is repeated";
  again.set_epoch(7);
  EXPECT_EQ(rest_of_loader(*loader).size(), expected.size());
}

TEST(SamplerTest, PositionIsWhatWasHandedOutUntilAdvanceCounts) {
  DistributedSampler sampler(100, 2, 0);
  sampler.reset();
  sampler.next(8);
  EXPECT_EQ(sampler.position(), 8);
  sampler.advance(4);
  EXPECT_EQ(sampler.position(), 4);
  sampler.next(8);
  EXPECT_EQ(sampler.position(), 4);
  EXPECT_EQ(sampler.state().consumed, 8);
  // The loader requests the first batches of the next epoch before it is trained on.
  sampler.set_epoch(1);
  sampler.reset();
  sampler.next(8);
  EXPECT_EQ(sampler.position(), 0);
  EXPECT_EQ(sampler.state(), (SamplerState{.epoch = 1, .consumed = 0, .dataset_size = 100}));
}

TEST(SamplerTest, SetEpochDuringAnIterationWaitsForTheNext) {
  DistributedSampler sampler(40, 2, 0);
  const auto epoch_0 = sampler.indices();
  sampler.reset();
  auto seen = take(sampler, 5);
  sampler.set_epoch(1);
  EXPECT_EQ(sampler.state(), (SamplerState{.epoch = 1, .consumed = 0, .dataset_size = 40}));
  const auto epoch_1 = sampler.indices();
  const auto more = rest_of(sampler);
  seen.insert(seen.end(), more.begin(), more.end());
  EXPECT_EQ(seen, epoch_0);
  EXPECT_EQ(sampler.position(), 0);
  sampler.reset();
  EXPECT_EQ(rest_of(sampler), epoch_1);
  EXPECT_NE(epoch_0, epoch_1);
}

TEST(SamplerTest, WorksByHandWithIndicesAndAdvance) {
  DistributedSampler sampler(30, 2, 1);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    sampler.set_epoch(epoch);
    const auto mine = sampler.indices();
    ASSERT_EQ(mine.size(), 15);
    EXPECT_EQ(sampler.indices(), mine) << "indices() does not count";
    sampler.advance(6);
    EXPECT_EQ(sampler.indices(), Samples(mine.begin() + 6, mine.end()));
    EXPECT_EQ(sampler.state().consumed, 12);
    sampler.advance(9);
    EXPECT_THAT(sampler.indices(), IsEmpty());
  }
}

TEST(SamplerTest, AdvanceBeforeAnIterationSkips) {
  DistributedSampler sampler(30, 2, 1);
  const auto mine = sampler.indices();
  sampler.advance(4);
  sampler.reset();
  EXPECT_EQ(sampler.position(), 0);
  EXPECT_EQ(sampler.state().consumed, 8);
  EXPECT_EQ(rest_of(sampler), Samples(mine.begin() + 4, mine.end()));
  EXPECT_EQ(sampler.position(), 11) << "skipping does not switch to counting by advance()";
}

TEST(SamplerTest, AMovedSamplerStaysUsable) {
  DistributedSampler sampler(10, 2, 0);
  auto loader = torch::data::make_data_loader(Numbers(10), std::move(sampler), 4);
  sampler.set_epoch(3);  // NOLINT(bugprone-use-after-move): a move is a copy
  const auto expected = sampler.indices();
  EXPECT_EQ(expected.size(), 5);
  EXPECT_EQ(rest_of_loader(*loader), expected);
}

TEST(SamplerTest, NextNeedsNoResetTheFirstTime) {
  DistributedSampler sampler(10, 2, 0);
  const auto mine = sampler.indices();
  EXPECT_EQ(rest_of(sampler), mine);
  EXPECT_FALSE(sampler.next(1));
}

TEST(SamplerTest, ResetTakesANewSizeUnlessAPositionDependsOnIt) {
  DistributedSampler sampler(10, 2, 0, {.shuffle = false});
  sampler.reset(6);
  EXPECT_THAT(rest_of(sampler), ElementsAre(0, 2, 4));
  EXPECT_EQ(sampler.size(), 3);
  EXPECT_EQ(sampler.state().dataset_size, 6);
  sampler.restore({.consumed = 2, .dataset_size = 6, .shuffle = false});
  EXPECT_THAT(usage_error_of([&] { sampler.reset(10); }),
              AllOf(HasSubstr("2 of 6 samples are done, and now there are 10"), HasSubstr("rank 0/2"),
                    HasSubstr("hint: ")));
  sampler.reset(6);
  EXPECT_THAT(rest_of(sampler), ElementsAre(2, 4));
}

TEST(SamplerTest, CopiesInManyThreadsShareOneIteration) {
  DistributedSampler sampler(20'000, 2, 1);
  sampler.reset();
  std::vector<Samples> got(4);
  std::vector<std::thread> threads;
  for (auto& mine : got) {
    threads.emplace_back([&mine, copy = sampler]() mutable { mine = rest_of(copy); });
  }
  while (sampler.position() < 10'000) EXPECT_LE(sampler.state().consumed, 20'000);
  for (auto& thread : threads) thread.join();
  Samples all;
  for (const auto& mine : got) all.insert(all.end(), mine.begin(), mine.end());
  std::sort(all.begin(), all.end());
  auto expected = DistributedSampler(20'000, 2, 1).indices();
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(all, expected);
}

// ---- continuing after an interruption

// Distributes one epoch in several runs of different world sizes, each interrupted at any point. Checks that
// together they follow the epoch's order without gaps or repetitions.
void deal_in_legs(std::mt19937& random, size_t size, const SamplerOptions& options, bool one_world) {
  const auto below = [&](size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random); };
  const auto order = epoch_order(size, options, 4);
  int world = static_cast<int>(1 + below(8));
  const int first_world = world;
  SamplerState state{.epoch = 4, .dataset_size = size, .seed = options.seed, .shuffle = options.shuffle};
  Samples dealt;
  const size_t legs = 1 + below(5);
  for (size_t leg = 0; leg < legs; ++leg) {
    if (!one_world && leg > 0) world = static_cast<int>(1 + below(8));
    const bool last = leg + 1 == legs;
    auto ranks = all_ranks(size, world, options);
    for (auto& sampler : ranks) {
      sampler.restore(state);
      sampler.set_epoch(4);
    }
    const size_t stop = last ? SIZE_MAX : below(ranks.back().indices().size() + 1);
    std::vector<Samples> by_rank;
    for (auto& sampler : ranks) {
      if (below(2) == 0) {
        sampler.reset();
        by_rank.push_back(take(sampler, stop));
      } else {
        by_rank.push_back(sampler.indices());
        if (by_rank.back().size() > stop) by_rank.back().resize(stop);
        sampler.advance(by_rank.back().size());
      }
    }
    const auto more = in_rounds(by_rank);
    dealt.insert(dealt.end(), more.begin(), more.end());
    state = ranks.front().state();
    if (!last) {
      for (auto& sampler : ranks) ASSERT_EQ(sampler.state(), state);
    }
  }
  const size_t end = dealt.size();
  for (size_t i = 0; i < end; ++i) ASSERT_EQ(dealt[i], order[i % size]) << "at " << i << " of " << size;
  if (options.exact) {
    ASSERT_EQ(end, size);
  } else if (options.drop_last) {
    ASSERT_LE(end, size);
    ASSERT_LT(size - end, 8);
  } else {
    ASSERT_GE(end, size);
    ASSERT_LT(end - size, 8);
  }
  if (one_world && !options.exact) {
    const auto uninterrupted = DistributedSampler(size, first_world, 0, options).size() * first_world;
    ASSERT_EQ(end, uninterrupted);
  }
}

class SamplerResumeTest : public ::testing::TestWithParam<SamplerOptions> {};
INSTANTIATE_TEST_SUITE_P(Options, SamplerResumeTest,
                         ::testing::Values(SamplerOptions{.seed = 9},
                                           SamplerOptions{.seed = 9, .drop_last = true},
                                           SamplerOptions{.seed = 9, .exact = true},
                                           SamplerOptions{.shuffle = false}),
                         [](const auto& param_info) {
                           return param_info.param.exact       ? "exact"
                                  : param_info.param.drop_last ? "drop_last"
                                  : param_info.param.shuffle   ? "pad"
                                                               : "not_shuffled";
                         });

TEST_P(SamplerResumeTest, AtTheSameWorldAsIfNeverInterrupted) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 150 && !HasFatalFailure(); ++trial) {
    deal_in_legs(random, trial < 20 ? trial : random() % 120, GetParam(), true);
  }
}

TEST_P(SamplerResumeTest, AtOtherWorldsNothingIsLostOrRepeatedButTheLastPadding) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 150 && !HasFatalFailure(); ++trial) {
    deal_in_legs(random, trial < 20 ? trial : random() % 120, GetParam(), false);
  }
}

TEST(SamplerTest, AnotherEpochAfterARestoreBeginsAtItsBeginning) {
  DistributedSampler sampler(20, 2, 0);
  sampler.restore({.epoch = 3, .consumed = 8, .dataset_size = 20});
  EXPECT_EQ(sampler.epoch(), 3);
  EXPECT_EQ(sampler.position(), 0);
  EXPECT_EQ(sampler.indices().size(), 6);
  EXPECT_EQ(sampler.size(), 10) << "len(sampler) is that of a whole epoch";
  sampler.set_epoch(4);
  EXPECT_EQ(sampler.indices().size(), 10);
  sampler.set_epoch(3);
  EXPECT_EQ(sampler.indices().size(), 10) << "the restored position was discarded";
}

TEST(SamplerTest, AFinishedEpochRestoredHasNothingLeftThenBeginsAnew) {
  for (const bool drop_last : {true, false}) {
    DistributedSampler before(21, 4, 0, {.drop_last = drop_last});
    before.reset();
    rest_of(before);
    EXPECT_EQ(before.state().consumed, 21);
    DistributedSampler sampler(21, 2, 0, {.drop_last = drop_last});
    sampler.restore(before.state());
    sampler.set_epoch(0);
    sampler.reset();
    EXPECT_THAT(rest_of(sampler), IsEmpty());
    sampler.reset();
    EXPECT_EQ(rest_of(sampler).size(), sampler.size());
  }
}

TEST(SamplerTest, AStateOfAnotherOrderIsRefusedAndChangesNothing) {
  DistributedSampler sampler(20, 2, 1, {.seed = 7});
  sampler.reset();
  sampler.next(3);
  const auto state = sampler.state();
  const auto refusal = [&](SamplerState other) { return usage_error_of([&] { sampler.restore(other); }); };
  auto other = state;
  other.dataset_size = 21;
  EXPECT_THAT(refusal(other), AllOf(HasSubstr("dataset_size is 21 in the state and 20 here"),
                                    HasSubstr("rank 1/2"), HasSubstr("hint: ")));
  other = state;
  other.seed = 8;
  EXPECT_THAT(refusal(other), HasSubstr("seed is 8 in the state and 7 here"));
  other = state;
  other.shuffle = false;
  EXPECT_THAT(refusal(other), HasSubstr("shuffle is false in the state and true here"));
  other = state;
  other.consumed = 21;
  EXPECT_THAT(refusal(other), HasSubstr("21 of 20 samples"));
  EXPECT_EQ(sampler.state(), state);
}

TEST(SamplerTest, TorchSaveAndLoadKeepTheState) {
  constexpr uint64_t kSeed = UINT64_MAX - 1;
  DistributedSampler sampler(20, 2, 1, {.seed = kSeed});
  sampler.set_epoch(-5);
  sampler.reset();
  sampler.next(3);
  std::stringstream file;
  torch::save(sampler, file);
  DistributedSampler loaded(20, 2, 1, {.seed = kSeed});
  torch::load(loaded, file);
  EXPECT_EQ(loaded.state(), sampler.state());
  EXPECT_EQ(loaded.state().consumed, 6);
  EXPECT_EQ(loaded.indices(), sampler.indices());
}

TEST(SamplerTest, AnArchiveOfSomethingElseIsRefused) {
  std::stringstream file;
  torch::data::samplers::SequentialSampler sequential(20);
  torch::save(sequential, file);
  DistributedSampler sampler(20, 2, 1);
  try {
    torch::load(sampler, file);
    FAIL() << "no error";
  } catch (const SnapshotError& error) {
    EXPECT_THAT(error.what(), HasSubstr("it has no integer \"epoch\""));
  }
}

// ---- errors

TEST(SamplerTest, RefusesWhatCannotBeRight) {
  const auto error_of = [](size_t size, int world, int rank, SamplerOptions options = {}) {
    return usage_error_of([&] { DistributedSampler(size, world, rank, options); });
  };
  EXPECT_THAT(error_of(10, 0, 0), HasSubstr("got 0 replicas"));
  EXPECT_THAT(error_of(10, -1, 0), HasSubstr("got -1 replicas"));
  EXPECT_THAT(error_of(10, 2, 2), AllOf(HasSubstr("rank 2 of 2"), HasSubstr("between 0 and 1")));
  EXPECT_THAT(error_of(10, 2, -1), HasSubstr("rank -1 of 2"));
  EXPECT_THAT(error_of(static_cast<size_t>(-1), 2, 0), HasSubstr("cannot have 18446744073709551615 samples"));
  EXPECT_THAT(error_of(10, 2, 0, {.drop_last = true, .exact = true}), HasSubstr("both exact and drop_last"));
  EXPECT_THAT(usage_error_of([] { DistributedSampler(10, nullptr); }), HasSubstr("no process group"));
  EXPECT_THAT(usage_error_of([] { DistributedSampler(10); }), HasSubstr("init_process_group"));
  DistributedSampler sampler(10, 2, 0);
  EXPECT_THAT(usage_error_of([&] { sampler.next(0); }), HasSubstr("batch of 0 samples"));
}

TEST(SamplerTest, AdvanceRefusesMoreThanThisRankWasGiven) {
  DistributedSampler sampler(100, 4, 0);
  EXPECT_THAT(usage_error_of([&] { sampler.advance(26); }), HasSubstr("gets 25 samples"));
  EXPECT_THAT(usage_error_of([&] { sampler.advance(SIZE_MAX); }), HasSubstr("gets 25 samples"));
  sampler.reset();
  sampler.next(4);
  // For example the global batch.
  EXPECT_THAT(usage_error_of([&] { sampler.advance(16); }),
              AllOf(HasSubstr("by 16 samples (rank 0/4, epoch 0)"),
                    HasSubstr("has received 4 samples, of which 0 are already counted"),
                    HasSubstr("this rank's batch")));
  EXPECT_EQ(sampler.position(), 4) << "a call that throws does not count";
  sampler.advance(4);
  EXPECT_THAT(usage_error_of([&] { sampler.advance(SIZE_MAX); }), HasSubstr("4 are already counted"));
  EXPECT_EQ(sampler.position(), 4);
}

// ---- with a group

TEST(SamplerTest, TakesRankAndWorldFromTheGroup) {
  run_ranks(3, "shm", [](ProcessGroup& group) {
    for (const auto& sampler : {DistributedSampler(10), DistributedSampler(10, default_group(), {})}) {
      EXPECT_EQ(sampler.indices(), DistributedSampler(10, group.world_size(), group.rank()).indices());
    }
    DistributedSampler evaluation(10, default_group(), {.shuffle = false, .exact = true});
    auto seen = torch::zeros({10});
    for (const auto sample : evaluation.indices()) seen[static_cast<int64_t>(sample)] += 1;
    group.all_reduce(seen);
    EXPECT_TRUE(torch::equal(seen, torch::ones({10})));
  });
}

}  // namespace
}  // namespace lockstep::testing
