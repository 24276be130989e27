// Metrics over all ranks: averages weighted by count, and the predictions for a whole dataset without
// duplicates.
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>

#include <lockstep/lockstep.h>
#include <lockstep/metrics.h>

#include "support/data.h"
#include "support/message_of.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Indices = std::vector<size_t>;

// ---- Average

void expect_same_on_all_ranks(ProcessGroup& group, double value) {
  for (const auto& theirs : group.all_gather(at::tensor({value}, at::kDouble)))
    EXPECT_EQ(theirs.item<double>(), value);
}

TEST(Averages, WeighBatchesBySize) {
  Average average;
  average.add(1.0, 3);
  average.add(torch::full({}, 5.0F), 1);
  average.add_sum(6.0, 2);
  average.add_sum(torch::full({1}, 4, at::kLong), 2);
  EXPECT_DOUBLE_EQ(average.local(), (3 + 5 + 6 + 4) / 8.0);
  EXPECT_EQ(average.count(), 8);
  average.reset();
  EXPECT_TRUE(std::isnan(average.local()));
  EXPECT_EQ(average.count(), 0);
  average.add(2.0);
  EXPECT_EQ(average.local(), 2);
}

class AveragesOf : public ::testing::TestWithParam<const char*> {};

TEST_P(AveragesOf, AllRanksAreThatOfAllSamples) {
  run_ranks(3, GetParam(), [](ProcessGroup& group) {
    // Values whose sum depends on the order of summation; one rank has much more than the others.
    Average average;
    double sum = 0, count = 0;
    for (int rank = 0; rank < 3; ++rank) {
      for (int64_t i = 0; i < 5 + 20 * rank; ++i) {
        const double value = 1 / (3.0 + static_cast<double>(i) + rank);
        if (rank == group.rank()) average.add(value, i + 1);
        sum += value * static_cast<double>(i + 1);
        count += static_cast<double>(i + 1);
      }
    }
    const double mean = average.all_reduce(group);
    EXPECT_NEAR(mean, sum / count, 1e-14);
    expect_same_on_all_ranks(group, mean);
    EXPECT_EQ(average.all_reduce(default_group()), mean);
    EXPECT_EQ(average.all_reduce(), mean);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, AveragesOf, ::testing::Values("shm", "gloo"),
                         [](const auto& test) { return std::string(test.param); });

TEST(Averages, TakeRanksWithoutSamples) {
  run_ranks(3, "shm", [](ProcessGroup& group) {
    Average average;
    EXPECT_TRUE(std::isnan(average.all_reduce(group)));
    if (group.rank() == 1) average.add(4.0, 2);
    // An empty batch, whose mean is NaN.
    if (group.rank() == 2) {
      average.add(std::nan(""), 0);
      average.add(torch::empty({0}).mean(), 0);
    }
    EXPECT_EQ(average.all_reduce(group), 4);
    // A NaN of an actual sample is not hidden.
    if (group.rank() == 0) average.add(std::nan(""), 1);
    EXPECT_TRUE(std::isnan(average.all_reduce(group)));
  });
}

TEST(Averages, WorkInAWorldOfOne) {
  run_ranks(1, "auto", [](ProcessGroup& group) {
    Average average;
    EXPECT_TRUE(std::isnan(average.all_reduce(group)));
    average.add(3.0, 2);
    EXPECT_EQ(average.all_reduce(group), 3);
  });
}

TEST(Averages, KeepDoublePrecisionForTensorsOfLess) {
  Average average;
  for (int i = 0; i < 3000; ++i) average.add(torch::ones({}, at::kHalf));
  EXPECT_EQ(average.local(), 1);
  EXPECT_EQ(average.count(), 3000);
  average.reset();
  average.add(torch::full({}, 16777216.0F), 1);
  for (int i = 0; i < 3; ++i) average.add(torch::ones({}), 1);
  EXPECT_EQ(average.local() * 4, 16777219);
}

TEST(Averages, HoldNeitherTheGraphNorTheMemoryOfWhatWasAdded) {
  Average average;
  auto parameter = torch::full({1}, 2.0, at::kDouble).requires_grad_();
  auto loss = (parameter * 3).sum();
  average.add_sum(loss, 1);
  EXPECT_EQ(loss.use_count(), 1);
  {
    const torch::NoGradGuard no_grad;
    loss.zero_();
  }
  EXPECT_EQ(average.local(), 6);
  // Evaluates in inference mode and trains outside of it.
  {
    const c10::InferenceMode inference;
    average.add_sum(torch::full({1}, 4.0), 1);
  }
  average.add_sum(loss, 1);
  EXPECT_DOUBLE_EQ(average.local(), 10 / 3.0);
}

TEST(Averages, RefuseWhatIsNotANumberOfSomeSamples) {
  Average average;
  EXPECT_THAT(message_of<UsageError>([&] { average.add(1.0, -1); }), HasSubstr("count is -1"));
  EXPECT_THAT(message_of<UsageError>([&] { average.add(torch::ones({2}), 2); }),
              HasSubstr("2 Float elements"));
  EXPECT_THAT(message_of<UsageError>([&] { average.add(at::Tensor(), 2); }), HasSubstr("undefined"));
  EXPECT_THAT(message_of<UsageError>([&] { average.add_sum(torch::ones({}), -3); }),
              HasSubstr("count is -3"));
  EXPECT_THROW(average.add_sum(torch::zeros({1}, at::kComplexFloat), 1), UsageError);
  EXPECT_THROW(average.all_reduce(std::shared_ptr<ProcessGroup>()), UsageError);
  EXPECT_EQ(average.count(), 0);
}

// ---- gather_by_index

// The part of a dataset that a rank gets from an exact sampler.
Indices every_nth(size_t size, const ProcessGroup& group) {
  Indices indices;
  for (size_t i = group.rank(); i < size; i += group.world_size()) indices.push_back(i);
  return indices;
}

at::Tensor rows_of(const at::Tensor& whole, const Indices& indices) {
  return whole.index_select(0, at::tensor(std::vector<int64_t>(indices.begin(), indices.end()), at::kLong));
}

class Gathering : public ::testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  void run(const std::function<void(ProcessGroup& group)>& body) {
    run_ranks(std::get<1>(GetParam()), std::get<0>(GetParam()), body);
  }
};

TEST_P(Gathering, PutsEveryRowInItsPlace) {
  run([](ProcessGroup& group) {
    for (const auto dtype : all_dtypes()) {
      // Also with fewer samples than ranks, so that some ranks have none.
      for (const size_t size : {1, 2, 7, 20}) {
        const auto whole = exact_data({static_cast<int64_t>(size), 3}, dtype, 0);
        const auto indices = every_nth(size, group);
        EXPECT_TRUE(same(gather_by_index(rows_of(whole, indices), indices, size, group), whole))
            << size << " " << c10::toString(dtype);
      }
    }
  });
}

TEST_P(Gathering, TakesRowsOfAnyShape) {
  run([](ProcessGroup& group) {
    const auto indices = every_nth(9, group);
    for (const std::vector<int64_t>& sizes :
         std::vector<std::vector<int64_t>>{{9}, {9, 1}, {9, 0}, {9, 2, 3}, {9, 2, 1, 2, 1, 2, 1, 2}}) {
      const auto whole = exact_data(sizes, at::kFloat, 0);
      EXPECT_TRUE(same(gather_by_index(rows_of(whole, indices), indices, 9, default_group()), whole));
    }
    // Not contiguous, and part of a graph.
    const auto whole = torch::arange(36.0).view({4, 9}).t().requires_grad_();
    const auto result = gather_by_index(rows_of(whole, indices).t().contiguous().t(), indices, 9, group);
    EXPECT_TRUE(at::equal(result, whole));
    EXPECT_FALSE(result.requires_grad());
  });
}

TEST_P(Gathering, DropsWhatASamplerRepeats) {
  run([](ProcessGroup& group) {
    // Each rank has the whole dataset twice, in reverse order; the rows of the first rank are used.
    Indices indices(10);
    for (size_t i = 0; i < indices.size(); ++i) indices[i] = (9 - i) / 2;
    const auto whole = torch::arange(5.0);
    const auto result = gather_by_index(rows_of(whole, indices) + group.rank() * 100, indices, 5, group);
    EXPECT_TRUE(at::equal(result, whole));
  });
}

TEST_P(Gathering, TakesRanksWithoutRows) {
  run([](ProcessGroup& group) {
    // The last rank has all rows; the others do not know their type.
    const int last = group.world_size() - 1;
    const auto whole = exact_data({6, 2}, at::kLong, 0);
    Indices indices(group.rank() == last ? 6 : 0);
    std::iota(indices.begin(), indices.end(), 0);
    for (const auto& nothing : {at::Tensor(), torch::empty({0}), torch::empty({0, 5, 5}, at::kBool)}) {
      EXPECT_TRUE(same(gather_by_index(group.rank() == last ? whole : nothing, indices, 6, group), whole));
    }
  });
}

TEST_P(Gathering, TakesAnEmptyDataset) {
  run([](ProcessGroup& group) {
    const auto result = gather_by_index(torch::empty({0, 3}, at::kLong), {}, 0, group);
    EXPECT_EQ(result.sizes(), at::IntArrayRef({0, 3}));
    EXPECT_EQ(result.scalar_type(), at::kLong);
    EXPECT_EQ(gather_by_index(at::Tensor(), {}, 0, group).numel(), 0);
  });
}

TEST_P(Gathering, GivesTheResultToTheRootOnly) {
  run([](ProcessGroup& group) {
    const auto whole = exact_data({11, 3}, at::kFloat, 0);
    const auto indices = every_nth(11, group);
    for (int root = 0; root < group.world_size(); ++root) {
      const auto result = gather_by_index(rows_of(whole, indices), indices, 11, group, {.root = root});
      EXPECT_EQ(result.defined(), group.rank() == root);
      EXPECT_TRUE(!result.defined() || same(result, whole));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, Gathering, ::testing::Values(std::tuple("auto", 1), std::tuple("shm", 3), std::tuple("gloo", 2)),
    [](const auto& test) { return std::get<0>(test.param) + std::to_string(std::get<1>(test.param)); });

// Every rank gets an error about the same problem, and the group remains usable.
template <class Exception>
void expect_refused(ProcessGroup& group, const std::function<void()>& action,
                    const ::testing::Matcher<const std::string&>& message) {
  EXPECT_THAT(message_of<Exception>(action), message);
  EXPECT_EQ(group.all_gather(torch::ones({1})).size(), static_cast<size_t>(group.world_size()));
}

TEST(GatheringWrong, MissingSamplesAreCountedAndTheFirstIsNamed) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    auto indices = every_nth(10, group);
    if (group.rank() == 1) indices.resize(2);  // has 1 and 3, but not 5, 7, 9
    expect_refused<MismatchError>(
        group, [&] { gather_by_index(rows_of(torch::arange(10), indices), indices, 10, group); },
        AllOf(HasSubstr("no rank has 3 of the 10 samples, the first of them 5"), HasSubstr("hint:")));
    expect_refused<MismatchError>(
        group, [&] { gather_by_index(at::Tensor(), {}, 4, group, {.root = 1}); },
        HasSubstr("no rank has 4 of the 4 samples, the first of them 0"));
  });
}

TEST(GatheringWrong, DifferencesBetweenRanksAreNamed) {
  run_ranks(3, "shm", [](ProcessGroup& group) {
    const bool odd = group.rank() == 2;
    const auto indices = every_nth(9, group);
    const auto rows = torch::zeros({3, 4});
    expect_refused<MismatchError>(
        group,
        [&] {
          gather_by_index(odd ? torch::zeros({3, 5}) : rows, indices, 9, group);
        },
        HasSubstr("rank 0 has rows of Float [4], rank 2 has rows of Float [5]"));
    expect_refused<MismatchError>(
        group,
        [&] {
          gather_by_index(odd ? torch::zeros({3, 4, 1}) : rows, indices, 9, group);
        },
        HasSubstr("rank 2 has rows of Float [4, 1]"));
    expect_refused<MismatchError>(
        group, [&] { gather_by_index(odd ? rows.to(at::kHalf) : rows, indices, 9, group); },
        HasSubstr("rank 2 has rows of Half [4]"));
    expect_refused<MismatchError>(
        group, [&] { gather_by_index(rows, indices, odd ? 10 : 9, group); },
        HasSubstr("the dataset size is 9 on rank 0, 10 on rank 2"));
    expect_refused<MismatchError>(
        group, [&] { gather_by_index(rows, indices, 9, group, {.root = odd ? 1 : -1}); },
        HasSubstr("the root is -1 on rank 0, 1 on rank 2"));
  });
}

TEST(GatheringWrong, ARanksOwnMistakeLeavesNobodyWaiting) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    const auto good = every_nth(4, group);
    const auto rows = torch::zeros({2, 4});
    const auto attempt = [&](const at::Tensor& values, const Indices& indices, const char* trouble,
                             size_t size = 4, GatherOptions options = {}) {
      if (group.rank() == 1) {
        expect_refused<UsageError>(
            group, [&] { gather_by_index(values, indices, size, group, options); },
            AllOf(HasSubstr(trouble), HasSubstr("rank 1/2")));
      } else {
        expect_refused<MismatchError>(
            group, [&] { gather_by_index(rows, good, 4, group); }, HasSubstr("the arguments of rank 1"));
      }
    };
    attempt(rows, {1, 2, 3}, "has 2 rows, but there are 3 indices");
    attempt(rows, {}, "has 2 rows, but there are 0 indices");
    attempt(rows, {1, 4}, "index 4 (number 1) is outside of a dataset of 4 samples");
    attempt(at::Tensor(), {1, 3}, "undefined");
    attempt(torch::zeros({}), {1}, "without rows");
    attempt(rows.to_sparse(), {1, 3}, "sparse");
    attempt(torch::zeros(std::vector<int64_t>(20, 2)), {1, 3}, "19 dimensions");
    attempt(rows, {1, 3}, "dataset size is 18446744073709551615", static_cast<size_t>(-1));
    attempt(rows, {1, 3}, "there is no rank 2", 4, {.root = 2});
    attempt(rows, {1, 3}, "there is no rank -2", 4, {.root = -2});
  });
}

TEST(GatheringWrong, NoGroupIsRefused) {
  EXPECT_THROW(gather_by_index(torch::zeros({0}), {}, 0, std::shared_ptr<ProcessGroup>()), UsageError);
}

}  // namespace
}  // namespace lockstep::testing
