// Arguments and outputs of all supported types: arguments are split, outputs are joined.
#include <array>
#include <atomic>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>

#include <lockstep/error.h>

#include "data_parallel/nets.h"

namespace own {
struct Input {
  at::Tensor x;
};
template <class Visit>
void visit_tensors(const Input& input, Visit&& visit) {
  visit(input.x);
}
}  // namespace own

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// A module whose forward calls a function of the test.
template <class Function>
struct Calls : torch::nn::Cloneable<Calls<Function>> {
  explicit Calls(Function function) : function_(std::make_shared<Function>(std::move(function))) { reset(); }
  void reset() override { this->register_parameter("unused", torch::ones({1})); }
  template <class... Args>
  auto forward(Args&&... args) {
    return (*function_)(std::forward<Args>(args)...);
  }
  std::shared_ptr<Function> function_;  // a pointer, because modules are assigned and closures cannot be
};
template <class Function>
auto parallel(int replicas, Function function) {
  return DataParallel(std::make_shared<Calls<Function>>(std::move(function)), {.replicas = replicas});
}

const auto kRows = torch::arange(10).view({5, 2});

TEST(DataParallelOutputs, NestedOutputsAreJoinedPartByPart) {
  using Output =
      std::tuple<at::Tensor, std::pair<at::Tensor, std::vector<at::Tensor>>, std::array<at::Tensor, 2>,
                 std::map<std::string, at::Tensor>, std::optional<at::Tensor>>;
  auto dp = parallel(2, [](const at::Tensor& x) {
    return Output{x, {x + 1, {x + 2, x + 3}}, {x + 4, x + 5}, {{"a", x + 6}, {"b", x + 7}}, x + 8};
  });
  const auto [a, b, c, d, e] = dp(kRows);
  EXPECT_TRUE(a.equal(kRows));
  EXPECT_TRUE(b.first.equal(kRows + 1));
  ASSERT_EQ(b.second.size(), 2U);
  EXPECT_TRUE(b.second[1].equal(kRows + 3));
  EXPECT_TRUE(c[1].equal(kRows + 5));
  ASSERT_EQ(d.size(), 2U);
  EXPECT_TRUE(d.at("b").equal(kRows + 7));
  EXPECT_TRUE(e.value().equal(kRows + 8));
}

TEST(DataParallelOutputs, NothingStaysNothing) {
  auto dp = parallel(2, [](const at::Tensor&) {
    return std::make_tuple(at::Tensor(), std::vector<at::Tensor>(), std::optional<at::Tensor>(),
                           std::unordered_map<int, at::Tensor>());
  });
  const auto [tensor, vector, optional, map] = dp(kRows);
  EXPECT_FALSE(tensor.defined());
  EXPECT_TRUE(vector.empty());
  EXPECT_FALSE(optional.has_value());
  EXPECT_TRUE(map.empty());
}

TEST(DataParallelOutputs, LossesAreStackedOneForEachReplica) {
  auto dp = parallel(3, [](const at::Tensor& x) { return x.sum(); });
  EXPECT_TRUE(dp(kRows).equal(torch::tensor({6, 22, 17})));
}

TEST(DataParallelOutputs, ForwardsWithoutAResultRun) {
  std::array<std::atomic<int>, 5> seen{};
  auto dp = parallel(2, [&seen](const at::Tensor& x) {
    for (int64_t i = 0; i < x.size(0); ++i) ++seen[x[i][0].item<int>() / 2];
  });
  dp(kRows);
  for (const auto& count : seen) EXPECT_EQ(count, 1);
}

TEST(DataParallelOutputs, OutputsThatDoNotFitTogetherAreAnErrorThatSaysSo) {
  auto shapes = parallel(2, [](const at::Tensor& x) { return x.new_zeros({2, x.size(0)}); });
  EXPECT_THAT([&] { shapes(kRows); }, ThrowsMessage<UsageError>(HasSubstr("[2, 3] and [2, 2]")));
  auto lengths = parallel(2, [](const at::Tensor& x) { return std::vector<at::Tensor>(x.size(0), x); });
  EXPECT_THAT([&] { lengths(kRows); }, ThrowsMessage<UsageError>(HasSubstr("lengths of vectors")));
  auto keys = parallel(2, [](const at::Tensor& x) { return std::map<int64_t, at::Tensor>{{x.size(0), x}}; });
  EXPECT_THAT([&] { keys(kRows); }, ThrowsMessage<UsageError>(HasSubstr("keys of maps")));
  auto optionals = parallel(
      2, [](const at::Tensor& x) { return x.size(0) == 3 ? std::optional<at::Tensor>(x) : std::nullopt; });
  EXPECT_THAT([&] { optionals(kRows); }, ThrowsMessage<UsageError>(HasSubstr("optional")));
  auto tensors = parallel(2, [](const at::Tensor& x) { return x.size(0) == 3 ? x : at::Tensor(); });
  EXPECT_THAT([&] { tensors(kRows); }, ThrowsMessage<UsageError>(HasSubstr("presence of tensors")));
}

TEST(DataParallelInputs, TensorsAreSplitAndTheRestIsCopied) {
  auto dp = parallel(2, [](at::Tensor x, const std::vector<at::Tensor>& list,
                           std::tuple<at::Tensor, int> tuple, const std::map<std::string, at::Tensor>& map,
                           c10::optional<at::Tensor> mask, const std::string& name, double factor,
                           const at::Tensor& number, const std::vector<int64_t>& sizes,
                           const at::Tensor& nothing) {
    EXPECT_EQ(name, "name");
    EXPECT_EQ(sizes.size(), 3U);
    EXPECT_FALSE(nothing.defined());
    return x * factor + list.at(0) + std::get<0>(tuple) * std::get<1>(tuple) + map.at("a") + *mask + number;
  });
  std::vector<at::Tensor> list{kRows};  // passed as an lvalue
  const auto output = dp(kRows, list, std::make_tuple(kRows, 2),
                         std::map<std::string, at::Tensor>{{"a", kRows}}, c10::optional<at::Tensor>(kRows),
                         "name", 3.0, torch::tensor(1), std::vector<int64_t>{1, 2, 3}, at::Tensor());
  EXPECT_TRUE(output.equal(kRows * 8.0 + 1));
}

TEST(DataParallelInputs, BatchesAreSplitAsByChunk) {
  for (const int replicas : {2, 3, 4, 7}) {
    for (int64_t rows = 2; rows < 12; ++rows) {
      auto dp = parallel(replicas, [](const at::Tensor& x) { return torch::full({1}, x.size(0)); });
      const auto sizes = dp(torch::zeros({rows, 2}));
      const auto chunks = torch::zeros({rows, 2}).chunk(replicas);
      ASSERT_EQ(sizes.size(0), static_cast<int64_t>(chunks.size()));
      for (int64_t i = 0; i < sizes.size(0); ++i) EXPECT_EQ(sizes[i].item<int64_t>(), chunks[i].size(0));
    }
  }
}

TEST(DataParallelInputs, TensorsOfDifferentLengthsAreAnErrorThatNamesThem) {
  auto dp = parallel(2, [](const at::Tensor& x, int, const at::Tensor& y) { return x + y; });
  EXPECT_THAT(
      [&] {
        dp(kRows, 1, torch::zeros({1, 2}));
      },
      ThrowsMessage<UsageError>(HasSubstr("argument 0 has 5 rows, argument 2 has 1")));
}

TEST(DataParallelInputs, TensorsThatCannotBeSplitAreAnError) {
  auto visited = parallel(2, [](const own::Input& input) { return input.x; });
  EXPECT_THAT([&] { visited(own::Input{kRows}); }, ThrowsMessage<UsageError>(HasSubstr("cannot be split")));
  auto value = parallel(2, [](const c10::IValue& input) { return input.toTensor(); });
  EXPECT_THAT([&] { value(c10::IValue(kRows)); }, ThrowsMessage<UsageError>(HasSubstr("cannot be split")));
}

TEST(DataParallelInputs, WithoutTensorsTheModuleItselfIsCalled) {
  auto dp = parallel(2, [](int rows) { return torch::zeros({rows}); });
  EXPECT_EQ(dp(3).size(0), 3);
}

}  // namespace
}  // namespace lockstep::testing
