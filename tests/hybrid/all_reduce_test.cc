// All-reduces of several chunks, between all kinds of placements. Small ones, and all other collectives, are
// in tests/multiprocess.
#include <algorithm>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "comm/from_tensors.h"
#include "comm/generation.h"
#include "comm/group.h"
#include "shm/reference.h"
#include "support/data.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

// Values whose sum depends on the order of the additions.
at::Tensor rough_data(int64_t count, int rank) {
  return at::sin(at::arange(count, at::kFloat) * (0.37 + rank)) *
         at::exp2(at::arange(count, at::kFloat).remainder(7) + rank);
}

// Rank by rank on each machine, then machine by machine.
at::Tensor sum_in_order(const std::string& machines, int64_t count) {
  at::Tensor total;
  std::string done;
  for (const char machine : machines) {
    if (done.find(machine) != std::string::npos) continue;
    done += machine;
    at::Tensor sum;
    for (size_t rank = 0; rank < machines.size(); ++rank) {
      if (machines[rank] != machine) continue;
      const auto data = rough_data(count, static_cast<int>(rank));
      sum = sum.defined() ? sum + data : data;
    }
    total = total.defined() ? total + sum : sum;
  }
  return total;
}

class HybridAllReduce : public ::testing::TestWithParam<const char*> {
 protected:
  std::string machines() const { return GetParam(); }
  void run(const std::function<void(ProcessGroup& group)>& body) {
    run_ranks(static_cast<int>(machines().size()), "hybrid:" + machines(), body);
  }
};

// One element more and less than a chunk, odd numbers, several chunks.
const std::vector<int64_t> kCounts = {4096, 4097, 65'535, 65'537, 300'001, 1'500'000};

TEST_P(HybridAllReduce, AddsInTheOrderOfRanksAndMachines) {
  run([this](ProcessGroup& group) {
    for (const auto count : kCounts) {
      const auto expected = sum_in_order(machines(), count);
      for (const bool registered : {false, true}) {
        auto tensor = registered ? group.empty({count}, at::kFloat) : at::empty({count});
        tensor.copy_(rough_data(count, group.rank()));
        group.all_reduce(tensor);
        EXPECT_TRUE(same(tensor, expected)) << count;
        tensor.copy_(rough_data(count, group.rank()));
        group.all_reduce(tensor, ReduceOp::Avg);
        EXPECT_TRUE(same(tensor, expected / group.world_size())) << count;
      }
    }
  });
}

TEST_P(HybridAllReduce, OfEveryDtype) {
  run([](ProcessGroup& group) {
    for (const auto dtype : all_dtypes()) {
      const std::vector<int64_t> shape = {300'001};
      const auto inputs = everyones(group.world_size(), shape, dtype, 3);
      for (const auto op : {ReduceOp::Sum, ReduceOp::Min, ReduceOp::Bxor}) {
        if (!has_meaning(op, dtype)) continue;
        auto tensor = inputs[group.rank()].clone();
        group.all_reduce(tensor, op);
        EXPECT_TRUE(same(tensor, expected_reduction(inputs, op))) << dtype;
      }
    }
  });
}

// While one is on its way, the next ones are reduced.
TEST_P(HybridAllReduce, ManyAtOnce) {
  run([this](ProcessGroup& group) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (const auto count : kCounts) {
      tensors.push_back(group.empty({count}, at::kFloat).copy_(rough_data(count, group.rank())));
    }
    for (int round = 0; round < 2; ++round) {
      for (size_t i = 0; i < tensors.size(); ++i) {
        works.push_back(group.all_reduce_async(tensors[i]));
        // Other calls in between, and one on a tensor that is still being reduced.
        if (i == 2) works.push_back(group.barrier_async());
        if (i == 3) works.push_back(group.broadcast_async(tensors[0], 0));
      }
    }
    for (auto& work : works) work.wait();
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto once = sum_in_order(machines(), kCounts[i]);
      at::Tensor twice;
      // The second time, all ranks give the same.
      std::string done;
      for (const char machine : machines()) {
        if (done.find(machine) != std::string::npos) continue;
        done += machine;
        at::Tensor sum;
        for (const char other : machines()) {
          if (other == machine) sum = sum.defined() ? sum + once : once;
        }
        twice = twice.defined() ? twice + sum : sum;
      }
      EXPECT_TRUE(same(tensors[i], twice)) << i;
    }
  });
}

// Rounded on their way only: the sums inside a machine are exact, and all ranks have the same bits.
TEST_P(HybridAllReduce, NarrowedBetweenMachines) {
  run([](ProcessGroup& group) {
    const auto& generation = comm::generation_of(group);
    for (const auto wire : {at::kHalf, at::kBFloat16}) {
      EXPECT_TRUE(generation->transport->narrows(wire));
      for (const auto count : kCounts) {
        // The sums are too large for Half before they are divided.
        auto tensor = group.empty({count}, at::kFloat);
        tensor.copy_(at::sin(at::arange(count, at::kFloat) + group.rank()) * 50'000);
        auto exact = tensor.clone();
        group.all_reduce(exact, ReduceOp::Avg);
        auto request = comm::all_reduce_of(tensor, ReduceOp::Avg);
        request.wire = wire;
        request.keep.push_back(tensor);
        comm::start(generation, {.request = std::move(request)}).wait();
        const double tolerance = wire == at::kHalf ? 1e-3 : 8e-3;
        EXPECT_TRUE(at::allclose(tensor, exact, tolerance, tolerance * 50'000)) << wire << " " << count;
        EXPECT_FALSE(same(tensor, exact));
        for (const auto& other : group.all_gather(tensor))
          EXPECT_TRUE(same(other, tensor)) << wire << " " << count;
      }
    }
    EXPECT_FALSE(generation->transport->narrows(at::kDouble));
  });
}

TEST_P(HybridAllReduce, RegisteredMemoryIsTheGroups) {
  run([this](ProcessGroup& group) {
    const auto& transport = *comm::generation_of(group)->transport;
    const auto tensor = group.empty({1000}, at::kFloat);
    const auto all = machines();
    const bool alone = std::count(all.begin(), all.end(), all[group.rank()]) == 1;
    EXPECT_EQ(transport.supplies_memory(at::kCPU), !alone);
    EXPECT_EQ(transport.supplied(tensor), !alone);
  });
}

TEST_P(HybridAllReduce, MessagesBetweenAllRanks) {
  run([](ProcessGroup& group) {
    for (int distance = 1; distance < group.world_size(); ++distance) {
      const int to = (group.rank() + distance) % group.world_size();
      const int from = (group.rank() + group.world_size() - distance) % group.world_size();
      const auto sent = at::full({100'000}, group.rank() * 10 + distance, at::kFloat);
      auto received = at::zeros({100'000});
      auto sending = group.send_async(sent, to, distance);
      group.recv(received, from, distance);
      sending.wait();
      EXPECT_TRUE(same(received, at::full({100'000}, from * 10 + distance, at::kFloat)));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Machines, HybridAllReduce,
                         ::testing::Values("ab", "aab", "abab", "aabbb", "abc", "aabbc"),
                         [](const auto& machines) { return std::string(machines.param); });

}  // namespace
}  // namespace lockstep::testing
