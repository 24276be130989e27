// The bucket plan: which parameters travel together, and in which order.
#include "reducer/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::reducer {
namespace {

using ::testing::ElementsAre;
using Buckets = std::vector<std::vector<size_t>>;

PlanItem floats(size_t bytes) { return {.bytes = bytes}; }

TEST(Plan, FillsBucketsUpToTheirCap) {
  const std::vector<PlanItem> items(6, floats(10));
  EXPECT_EQ(make_plan(items, {5, 4, 3, 2, 1, 0}, {.first = 10, .others = 20}),
            (Buckets{{5}, {4, 3}, {2, 1}, {0}}));
}

TEST(Plan, GivesALargeParameterABucketOfItsOwn) {
  const std::vector<PlanItem> items = {floats(5), floats(100), floats(5), floats(5)};
  EXPECT_EQ(make_plan(items, {0, 1, 2, 3}, {.first = 20, .others = 20}), (Buckets{{0}, {1}, {2, 3}}));
}

TEST(Plan, OneDtypeToABucket) {
  auto bf16 = floats(4);
  bf16.dtype = c10::ScalarType::BFloat16;
  const std::vector<PlanItem> items = {floats(4), bf16, floats(4), bf16};
  // In the order in which the buckets are complete.
  EXPECT_EQ(make_plan(items, {0, 1, 2, 3}, {.first = 100, .others = 100}), (Buckets{{0, 2}, {1, 3}}));
}

TEST(Plan, SparseTravelsAlone) {
  auto sparse = floats(4);
  sparse.sparse = true;
  const std::vector<PlanItem> items = {floats(4), sparse, floats(4), sparse};
  EXPECT_EQ(make_plan(items, {0, 1, 2, 3}, {.first = 100, .others = 100}), (Buckets{{1}, {0, 2}, {3}}));
}

TEST(Plan, HoldsEveryParameterOnceWhateverTheCaps) {
  std::vector<PlanItem> items;
  std::vector<size_t> order;
  for (size_t i = 0; i < 50; ++i) {
    items.push_back(floats((i * 37) % 91));
    order.push_back((i * 7) % 50);
  }
  for (const size_t cap : {size_t{1}, size_t{50}, size_t{1000}, size_t{1} << 30}) {
    std::vector<int> seen(items.size());
    for (const auto& bucket : make_plan(items, order, {.first = cap / 2 + 1, .others = cap})) {
      for (const auto index : bucket) ++seen[index];
    }
    EXPECT_THAT(seen, ::testing::Each(1));
  }
}

TEST(Plan, OfNothingIsEmpty) { EXPECT_TRUE(make_plan({}, {}, {.first = 1, .others = 1}).empty()); }

}  // namespace
}  // namespace lockstep::reducer
