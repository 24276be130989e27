// Sums that must be rounded are computed in rank order: they are bitwise the same on all ranks, in every kind
// of memory and in every run. 16-bit floats are added in fp32 and rounded once.
#include <gtest/gtest.h>
#include <map>
#include <string_view>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "shm/calls.h"
#include "shm/shared.h"
#include "support/data.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kMost = 100'003;

at::Tensor random_data(at::IntArrayRef sizes, at::ScalarType dtype, int rank) {
  static std::map<int, at::Tensor> drawn;  // generating the numbers takes longer than everything else
  auto& numbers = drawn[rank];
  const int64_t count = c10::multiply_integers(sizes);
  if (!numbers.defined() || numbers.numel() < count) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(1000 + rank);
    numbers = at::randn({std::max(count, 8 * kMost)}, generator, at::dtype(at::kDouble)).mul_(1 + rank);
  }
  return numbers.narrow(0, 0, count).view(sizes).to(dtype);
}

std::vector<at::Tensor> everyones_random(int world, at::IntArrayRef sizes, at::ScalarType dtype) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < world; ++rank) all.push_back(random_data(sizes, dtype, rank));
  return all;
}

at::Tensor sum_in_rank_order(const std::vector<at::Tensor>& inputs) {
  const auto dtype = inputs[0].scalar_type();
  const auto wide = dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
  auto total = inputs[0].to(wide);
  for (size_t i = 1; i < inputs.size(); ++i) total = total + inputs[i].to(wide);
  return total.to(dtype);
}

std::string_view bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.data_ptr()), tensor.nbytes()};
}

const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble};
const std::vector<int64_t> kCounts = {1, 37, 4097, kMost};

class Bitwise : public ::testing::TestWithParam<int> {};

TEST_P(Bitwise, SumsAreTakenInRankOrder) {
  run_ranks(GetParam(), "shm", [](ProcessGroup& group) {
    const int world = group.world_size(), rank = group.rank();
    for (const auto dtype : kDtypes) {
      for (const auto count : kCounts) {
        SCOPED_TRACE(::testing::Message() << c10::toString(dtype) << " " << count);
        const auto inputs = everyones_random(world, {count}, dtype);
        const auto sum = sum_in_rank_order(inputs);
        const auto want = bytes_of(sum);
        for (const bool registered : {false, true}) {
          // The last rank has the other kind of memory.
          const bool mine_is = registered != (rank == world - 1);
          auto tensor = mine_is ? group.empty({count}, at::dtype(dtype)) : at::empty({count}, dtype);
          tensor.copy_(inputs[rank]);
          group.all_reduce(tensor);
          EXPECT_TRUE(bytes_of(tensor) == want) << "all_reduce";

          tensor.copy_(inputs[rank]);
          group.reduce(tensor, world - 1);
          EXPECT_TRUE(rank != world - 1 || bytes_of(tensor) == want) << "reduce";

          tensor.copy_(inputs[rank]);
          EXPECT_TRUE(all_reduce_coalesced(*group.c10d(), {tensor})->wait());
          EXPECT_TRUE(bytes_of(tensor) == want) << "all_reduce_coalesced";
        }
        const auto wholes = everyones_random(world, {world, count}, dtype);
        auto output = at::empty({count}, dtype);
        group.reduce_scatter_tensor(output, wholes[rank]);
        EXPECT_TRUE(bytes_of(output) == bytes_of(sum_in_rank_order(wholes)[rank])) << "reduce_scatter";
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Bitwise, ::testing::Values(2, 3, 4, 7),
                         [](const auto& world) { return "World" + std::to_string(world.param); });

// Includes operations that do not promise a formula for each bit.
TEST(BitwiseRuns, GiveTheSameOnAllRanksAndEveryTime) {
  constexpr int kWorld = 3, kRuns = 2, kResults = 8;
  struct Digests {
    std::atomic<uint64_t> of[kRuns][kWorld][kResults] = {};
  };
  const Shared<Digests> digests;
  for (int run = 0; run < kRuns; ++run) {
    run_ranks(kWorld, "shm", [&](ProcessGroup& group) {
      int result = 0;
      for (const auto dtype : kDtypes) {
        for (const auto op : {ReduceOp::Avg, ReduceOp::Product}) {
          auto tensor = random_data({kMost}, dtype, group.rank());
          group.all_reduce(tensor, op);
          digests->of[run][group.rank()][result++] = std::hash<std::string_view>()(bytes_of(tensor));
        }
      }
    });
  }
  for (int result = 0; result < kResults; ++result) {
    const uint64_t first = digests->of[0][0][result];
    EXPECT_NE(first, 0U);
    for (int run = 0; run < kRuns; ++run)
      for (int rank = 0; rank < kWorld; ++rank) EXPECT_EQ(digests->of[run][rank][result], first);
  }
}

}  // namespace
}  // namespace lockstep::testing
