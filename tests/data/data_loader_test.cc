// lockstep::make_data_loader: returns LibTorch's batches, and its sampler counts what the loop has received.
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>

#include <torch/torch.h>

#include <lockstep/data_loader.h>

#include "data/uncounted.h"
#include "support/message_of.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Options = torch::data::DataLoaderOptions;
using Rows = std::vector<int64_t>;

constexpr size_t kPoints = 100;

// Each sample is its own index, collated into a tensor as usual.
struct Points : torch::data::datasets::Dataset<Points> {
  explicit Points(size_t size = kPoints) : size_(size) {}
  torch::data::Example<> get(size_t index) override {
    const auto value = torch::full({1}, static_cast<int64_t>(index));
    return {value.to(torch::kFloat), value};
  }
  torch::optional<size_t> size() const override { return size_; }
  size_t size_;
};

auto stacked(size_t size = kPoints) { return Points(size).map(torch::data::transforms::Stack<>()); }

Rows rows_in(const torch::data::Example<>& batch) {
  const auto flat = batch.target.flatten();
  return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
}

void append(Rows& to, const Rows& more) { to.insert(to.end(), more.begin(), more.end()); }

// The batches of a pass, or its first `most`.
template <class Loader>
std::vector<Rows> batches_of(Loader& loader, size_t most = SIZE_MAX) {
  std::vector<Rows> batches;
  for (auto& batch : loader) {
    batches.push_back(rows_in(batch));
    if (batches.size() == most) break;
  }
  return batches;
}

Rows joined(const std::vector<Rows>& batches) {
  Rows all;
  for (const auto& batch : batches) append(all, batch);
  return all;
}

struct Setting {
  size_t workers;
  bool drop_last = false;
  bool ordered = true;

  Options options(size_t batch_size = 6) const {
    return Options(batch_size).workers(workers).drop_last(drop_last).enforce_ordering(ordered);
  }
};

class DataLoaderTest : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(Settings, DataLoaderTest,
                         ::testing::Values(Setting{0}, Setting{2}, Setting{0, true}, Setting{3, true}),
                         [](const auto& at) {
                           return "workers" + std::to_string(at.param.workers) +
                                  (at.param.drop_last ? "_drop_last" : "");
                         });

TEST_P(DataLoaderTest, HandsOutWhatLibTorchsDoes) {
  DistributedSampler theirs(kPoints, 3, 1, {.seed = 4}), ours(kPoints, 3, 1, {.seed = 4});
  auto plain = torch::data::make_data_loader(stacked(), theirs, GetParam().options());
  auto loader = lockstep::make_data_loader(stacked(), ours, GetParam().options());
  EXPECT_EQ(loader->options().workers, GetParam().workers);
  for (const int64_t epoch : {0, 1, 5}) {
    theirs.set_epoch(epoch);
    loader->set_epoch(epoch);
    EXPECT_EQ(batches_of(*loader), batches_of(*plain));
    EXPECT_EQ(ours.epoch(), epoch) << "the loader uses the user's sampler";
  }
}

TEST_P(DataLoaderTest, CountsWhatTheLoopWasHanded) {
  DistributedSampler sampler(kPoints, 3, 1);
  auto loader = lockstep::make_data_loader(stacked(), sampler, GetParam().options());
  EXPECT_EQ(sampler.position(), 0);
  int64_t handed = 0;
  for (auto& batch : *loader) {
    handed += batch.target.size(0);
    EXPECT_EQ(sampler.position(), handed);
  }
  EXPECT_EQ(handed, GetParam().drop_last ? 30 : 34);
  EXPECT_EQ(sampler.position(), 34) << "at the end of a pass, including what drop_last left out";
  EXPECT_EQ(sampler.state().consumed, kPoints);
}

TEST_P(DataLoaderTest, ABatchCountsWhenItIsTaken) {
  auto loader =
      lockstep::make_data_loader(stacked(), DistributedSampler(kPoints, 1, 0), GetParam().options());
  auto at = loader->begin();
  EXPECT_EQ(loader->sampler().position(), 0) << "prefetched, but not received by the loop";
  EXPECT_EQ(at->target.size(0), 6);
  EXPECT_EQ((*at).target.size(0), 6);
  EXPECT_EQ(loader->sampler().position(), 6) << "counted once";
  ++at;
  EXPECT_EQ(loader->sampler().position(), 6);
  EXPECT_FALSE(at == loader->end());
}

TEST_P(DataLoaderTest, GoesOnAfterAnyBatchAtTheSameWorld) {
  DistributedSampler whole(kPoints, 2, 1);
  whole.set_epoch(3);
  auto uninterrupted = lockstep::make_data_loader(stacked(), whole, GetParam().options());
  const auto expected = batches_of(*uninterrupted);
  for (size_t stop = 1; stop <= expected.size(); ++stop) {
    DistributedSampler before(kPoints, 2, 1), after(kPoints, 2, 1);
    auto first = lockstep::make_data_loader(stacked(), before, GetParam().options());
    first->set_epoch(3);
    auto batches = batches_of(*first, stop);
    auto second = lockstep::make_data_loader(stacked(), after, GetParam().options());
    second->sampler().restore(before.state());
    second->set_epoch(3);
    for (auto& batch : batches_of(*second)) batches.push_back(std::move(batch));
    EXPECT_EQ(batches, expected) << "left after " << stop;
  }
}

TEST_P(DataLoaderTest, GoesOnAtAnotherWorldWithEachSampleOnce) {
  constexpr size_t kEven = 96;  // a multiple of all batch and world sizes: nothing is padded or dropped
  Rows seen;
  SamplerState state;
  for (int rank = 0; rank < 2; ++rank) {
    DistributedSampler sampler(kEven, 2, rank);
    auto loader = lockstep::make_data_loader(stacked(kEven), sampler, GetParam().options());
    append(seen, joined(batches_of(*loader, 4)));
    state = sampler.state();
  }
  EXPECT_EQ(state.consumed, 48);
  for (int rank = 0; rank < 4; ++rank) {
    DistributedSampler sampler(kEven, 4, rank);
    auto loader = lockstep::make_data_loader(stacked(kEven), sampler, GetParam().options());
    loader->sampler().restore(state);
    append(seen, joined(batches_of(*loader)));
  }
  std::sort(seen.begin(), seen.end());
  Rows all(kEven);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(seen, all);
}

TEST_P(DataLoaderTest, ALoopLeftEarlyCanBeBegunAnew) {
  auto loader =
      lockstep::make_data_loader(stacked(), DistributedSampler(kPoints, 2, 0), GetParam().options());
  const auto some = batches_of(*loader, 3);
  EXPECT_EQ(loader->sampler().position(), 18);
  const auto all = batches_of(*loader);
  ASSERT_GT(all.size(), 3U);
  EXPECT_EQ(std::vector<Rows>(all.begin(), all.begin() + 3), some) << "the same epoch from its start";
  EXPECT_EQ(loader->epoch(), 0);
}

TEST_P(DataLoaderTest, AWholePassIsFollowedByTheNextEpoch) {
  DistributedSampler by_hand(kPoints, 2, 0);
  auto sampled = torch::data::make_data_loader(stacked(), by_hand, GetParam().options());
  const auto of_epoch = [&](int64_t epoch) {
    by_hand.set_epoch(epoch);
    return batches_of(*sampled);
  };
  auto loader =
      lockstep::make_data_loader(stacked(), DistributedSampler(kPoints, 2, 0), GetParam().options());
  for (const int64_t epoch : {0, 1, 2}) {
    EXPECT_EQ(batches_of(*loader), of_epoch(epoch));
    EXPECT_EQ(loader->epoch(), epoch) << "until the next loop starts";
  }
  loader->set_epoch(2);
  EXPECT_EQ(batches_of(*loader), of_epoch(2)) << "set_epoch takes precedence, even with the same epoch";
  EXPECT_EQ(batches_of(*loader), of_epoch(3));
  loader->sampler().restore({.epoch = 7, .consumed = 24, .dataset_size = kPoints});
  EXPECT_EQ(joined(batches_of(*loader)).size(), GetParam().drop_last ? 36U : 38U)
      << "restore takes precedence";
  EXPECT_EQ(batches_of(*loader), of_epoch(8));
}

TEST_P(DataLoaderTest, SetEpochWithinALoopWaitsForTheNext) {
  auto loader =
      lockstep::make_data_loader(stacked(), DistributedSampler(kPoints, 2, 0), GetParam().options());
  size_t batches = 0;
  for ([[maybe_unused]] auto& batch : *loader) {
    if (++batches == 2) loader->set_epoch(9);
    if (batches > 2) {
      EXPECT_EQ(loader->sampler().position(), 0) << "of epoch 9";
    }
  }
  EXPECT_EQ(batches, GetParam().drop_last ? 8U : 9U);
  batches_of(*loader, 1);
  EXPECT_EQ(loader->epoch(), 9);
}

TEST(DataLoader, WithoutOrderTheNumberIsExactAndEachSampleComesOnce) {
  auto loader = lockstep::make_data_loader(stacked(), DistributedSampler(kPoints, 1, 0),
                                           Setting{.workers = 3, .ordered = false}.options(7));
  int64_t handed = 0;
  Rows seen;
  for (auto& batch : *loader) {
    handed += batch.target.size(0);
    EXPECT_EQ(loader->sampler().position(), handed);
    append(seen, rows_in(batch));
  }
  std::sort(seen.begin(), seen.end());
  Rows all(kPoints);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(seen, all);
}

struct Failing : torch::data::datasets::Dataset<Failing, int64_t> {
  int64_t get(size_t index) override {
    if (index == 20) throw std::runtime_error("sample 20 is broken");
    return static_cast<int64_t>(index);
  }
  torch::optional<size_t> size() const override { return 40; }
};

std::string error_of_loop(DataLoader<Failing>& loader) {
  try {
    for ([[maybe_unused]] auto& batch : loader) {
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(DataLoader, AnErrorOfTheDatasetEndsTheLoopAndTheNextOneBeginsAnew) {
  for (const size_t workers : {0, 2}) {
    DistributedSampler sampler(40, 1, 0, {.shuffle = false});
    auto loader = lockstep::make_data_loader(Failing(), sampler, Options(4).workers(workers));
    for (int attempt = 0; attempt < 2; ++attempt) {
      EXPECT_THAT(error_of_loop(*loader), HasSubstr("sample 20 is broken"));
      EXPECT_EQ(sampler.position(), 20);
    }
  }
}

TEST(DataLoader, TakesTheDatasetsThatLibTorchsTakes) {
  const DistributedSampler sampler(10, 2, 0, {.shuffle = false});
  auto uncollated = lockstep::make_data_loader(Points(10), sampler, 3);
  for (auto& batch : *uncollated) {
    EXPECT_EQ(batch.size(), 3U);  // a vector of samples
    break;
  }
  auto shared = lockstep::make_data_loader(torch::data::datasets::make_shared_dataset<Points>(10), sampler,
                                           Options(3).workers(2));
  EXPECT_EQ(shared->begin()->size(), 3U);
  auto tensors =
      lockstep::make_data_loader(torch::data::datasets::TensorDataset(torch::arange(10)), sampler, 3);
  EXPECT_EQ(tensors->begin()->at(1).data.item<int64_t>(), 2);
  auto empty = lockstep::make_data_loader(Points(0), DistributedSampler(0, 2, 0), 3);
  EXPECT_TRUE(empty->begin() == empty->end());
}

TEST(DataLoader, MakesItsOwnSampler) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    auto loader = lockstep::make_data_loader(stacked(), 10);
    EXPECT_EQ(loader->sampler().size(), kPoints / 2);
    auto seen = torch::zeros({static_cast<int64_t>(kPoints)});
    const auto first = batches_of(*loader);
    for (const auto row : joined(first)) seen[row] += 1;
    group.all_reduce(seen);
    EXPECT_TRUE(torch::equal(seen, torch::ones_like(seen)));
    EXPECT_NE(batches_of(*loader), first) << "a new order without set_epoch";

    auto plain = lockstep::make_data_loader(stacked(), 10, {.shuffle = false});
    EXPECT_EQ(batches_of(*plain, 1).front()[1], 2 + group.rank());
    auto seeded = lockstep::make_data_loader(stacked(), Options(10).workers(2), default_group(), {.seed = 3});
    EXPECT_EQ(seeded->sampler().state().seed, 3U);
    DistributedSampler& same = *seeded;
    EXPECT_EQ(&same, &seeded->sampler());
  });
}

// ---- errors

TEST(DataLoader, RefusesWhatCannotBeRight) {
  DistributedSampler sampler(kPoints, 2, 0);
  EXPECT_THAT(message_of<UsageError>([&] { lockstep::make_data_loader(stacked(99), sampler, 4); }),
              HasSubstr("the sampler is for 100 samples, but the dataset has 99"));
  EXPECT_THAT(message_of<UsageError>([&] { lockstep::make_data_loader(stacked(), sampler, 0); }),
              HasSubstr("a batch size of 0"));
  EXPECT_THAT(message_of<UsageError>(
                  [&] { lockstep::make_data_loader(stacked(), sampler, Options(4).workers(2).max_jobs(0)); }),
              HasSubstr("2 workers and max_jobs 0"));
  EXPECT_THAT(message_of<UsageError>([&] { lockstep::make_data_loader(stacked(), 4); }),
              HasSubstr("init_process_group"));
}

TEST(DataLoader, AdvanceBesideItIsRefused) {
  DistributedSampler sampler(kPoints, 2, 0);
  auto loader = lockstep::make_data_loader(stacked(), sampler, 4);
  sampler.advance(4);  // before an iteration: skips samples
  for (auto& batch : *loader) {
    EXPECT_EQ(sampler.state().consumed, 16);
    EXPECT_THAT(message_of<UsageError>([&] { sampler.advance(batch.data.size(0)); }),
                AllOf(HasSubstr("which counts by itself"), HasSubstr("remove")));
    break;
  }
  // A loader of LibTorch's with the same sampler still counts as usual.
  auto plain = torch::data::make_data_loader(stacked(), sampler, 4);
  for (auto& batch : *plain) {
    sampler.advance(batch.data.size(0));
    break;
  }
  EXPECT_EQ(sampler.position(), 4);
}

TEST(DataLoader, ALoopWithinItsOwnLoopIsRefused) {
  auto loader = lockstep::make_data_loader(stacked(), DistributedSampler(kPoints, 2, 0), 4);
  EXPECT_THAT(message_of<UsageError>([&] {
                for ([[maybe_unused]] auto& outer : *loader) batches_of(*loader, 2);
              }),
              AllOf(HasSubstr("within its own loop"), HasSubstr("second loader")));
}

// ---- warnings about loaders of LibTorch's

// The warnings of a snapshot after `steps` steps of a pass whose loop trains with autograd.
template <class Loader>
std::string warnings_after(Loader& loader, const DistributedSampler& sampler, size_t steps,
                           bool advance = false) {
  auto weight = torch::ones({1}, torch::requires_grad());
  ::testing::internal::CaptureStderr();
  size_t done = 0;
  for (auto& batch : loader) {
    (batch.data * weight).sum().backward();
    if (advance) DistributedSampler(sampler).advance(batch.data.size(0));
    if (++done == steps) {
      data::warn_if_uncounted(sampler);
      data::warn_if_uncounted(sampler);
      break;
    }
  }
  if (done < steps) data::warn_if_uncounted(sampler);
  return ::testing::internal::GetCapturedStderr();
}

TEST(SamplerWarnings, AheadOfTheTrainingOnlyWhereItIs) {
  constexpr size_t kAll = 10;  // steps of a pass
  for (const size_t steps : {size_t{1}, size_t{2}, size_t{5}, kAll, kAll + 1}) {
    DistributedSampler sampler(kPoints, 1, 0), with_workers(kPoints, 1, 0), advanced(kPoints, 1, 0),
        counted(kPoints, 1, 0);
    auto plain = torch::data::make_data_loader(stacked(), sampler, 10);
    EXPECT_EQ(warnings_after(*plain, sampler, steps), "") << "no workers, step " << steps;

    auto ahead = torch::data::make_data_loader(stacked(), with_workers, Options(10).workers(1));
    const auto warning = warnings_after(*ahead, with_workers, steps);
    if (steps < kAll) {
      EXPECT_THAT(warning, AllOf(HasSubstr("ahead of the training"),
                                 HasSubstr("lockstep::make_data_loader(dataset, sampler, options)"),
                                 HasSubstr("sampler.advance(batch size)")));
      EXPECT_EQ(warning.find("ahead of"), warning.rfind("ahead of")) << "once";
    } else {
      EXPECT_EQ(warning, "") << "all samples handed out are trained on";
    }

    auto by_hand = torch::data::make_data_loader(stacked(), advanced, Options(10).workers(2));
    EXPECT_EQ(warnings_after(*by_hand, advanced, steps, true), "");
    auto loader = lockstep::make_data_loader(stacked(), counted, Options(10).workers(2));
    EXPECT_EQ(warnings_after(*loader, counted, steps), "");
  }
}

TEST(SamplerWarnings, OutOfOrderInTheMiddleOfAnEpoch) {
  DistributedSampler sampler(kPoints, 1, 0);
  auto loader =
      lockstep::make_data_loader(stacked(), sampler, Options(10).workers(2).enforce_ordering(false));
  EXPECT_EQ(warnings_after(*loader, sampler, 11), "") << "after the whole pass";
  EXPECT_THAT(warnings_after(*loader, sampler, 4), HasSubstr("enforce_ordering(false)"));
}

TEST(SamplerWarnings, AForgottenSetEpochOnce) {
  const auto warnings_of = [](SamplerOptions options, auto&& before_second) {
    DistributedSampler sampler(kPoints, 2, 0, options);
    auto loader = torch::data::make_data_loader(stacked(), sampler, 8);
    ::testing::internal::CaptureStderr();
    for (int pass = 0; pass < 3; ++pass) {
      batches_of(*loader);
      if (pass == 0) before_second(sampler);
    }
    return ::testing::internal::GetCapturedStderr();
  };
  const auto nothing = [](DistributedSampler&) {};
  const auto warning = warnings_of({}, nothing);
  EXPECT_THAT(warning, AllOf(HasSubstr("epoch 0 is repeated in the same order"),
                             HasSubstr("sampler.set_epoch(epoch)"), HasSubstr("lockstep::make_data_loader")));
  EXPECT_EQ(warning.find("is repeated"), warning.rfind("is repeated"));
  EXPECT_EQ(warnings_of({.shuffle = false}, nothing), "");
  EXPECT_EQ(warnings_of({.exact = true}, nothing), "") << "for evaluation";
  EXPECT_EQ(warnings_of({}, [](DistributedSampler& sampler) { sampler.set_epoch(0); }), "");

  auto loader = lockstep::make_data_loader(stacked(), DistributedSampler(kPoints, 2, 0), 8);
  ::testing::internal::CaptureStderr();
  batches_of(*loader);
  batches_of(*loader);
  batches_of(*loader, 1);  // inspects one batch
  batches_of(*loader);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ::testing::internal::CaptureStderr();
  batches_of(*loader, 3);
  batches_of(*loader, 3);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("left early"), HasSubstr("loader->set_epoch(epoch)")));
}

}  // namespace
}  // namespace lockstep::testing
