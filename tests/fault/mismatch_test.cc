// If ranks make different calls over Gloo, every rank gets an error that shows both calls. There are no wrong
// results, no hangs and no crashes. (For shared memory: tests/shm/mismatch_test.cc.)
#include <chrono>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>
#include <thread>

#include <ATen/ATen.h>

#include "support/message_of.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

using GroupCall = std::function<void(ProcessGroup& group)>;

struct Different {
  const char* name;
  GroupCall most, one;             // `one` is rank 1's call
  std::vector<const char*> words;  // from both calls
};

at::Tensor ones(int64_t count, at::ScalarType dtype = at::kFloat) { return at::ones({count}, dtype); }

GroupCall reduces(int64_t count, at::ScalarType dtype = at::kFloat, ReduceOp op = ReduceOp::Sum) {
  return [=](ProcessGroup& group) { group.all_reduce(ones(count, dtype), op); };
}

const std::vector<Different>& all_differences() {
  static const std::vector<Different> all = {
      {"dtype", reduces(4, at::kFloat), reduces(4, at::kInt), {"of 4 Float, Sum", "of 4 Int, Sum"}},
      {"operation", reduces(4), reduces(4, at::kFloat, ReduceOp::Max), {"4 Float, Sum", "4 Float, Max"}},
      {"size", reduces(4), reduces(3), {"all_reduce of 4 Float", "all_reduce of 3 Float"}},
      {"larger", reduces(1000), reduces(1500), {"of 1000 Float", "of 1500 Float"}},
      {"smaller", reduces(1500), reduces(1000), {"of 1000 Float", "of 1500 Float"}},
      {"much larger", reduces(10), reduces(1 << 20), {"of 10 Float", "of 1048576 Float"}},
      {"none", reduces(100), reduces(0), {"of 100 Float", "of 0 Float"}},
      {"kind", reduces(10), [](ProcessGroup& group) { group.barrier(); }, {"all_reduce of 10", "barrier"}},
      {"reduction by gathering",
       reduces(10, at::kShort, ReduceOp::Bxor),
       reduces(10, at::kInt, ReduceOp::Bxor),
       {"Short, Bxor", "Int, Bxor"}},
      {"root",
       [](ProcessGroup& group) { group.broadcast(ones(10), 0); },
       [](ProcessGroup& group) { group.broadcast(ones(10), 1); },
       {"broadcast of 10 Float, root 0", "broadcast of 10 Float, root 1"}},
      {"order",
       [](ProcessGroup& group) {
         group.all_reduce(ones(5));
         group.all_reduce(ones(6));
       },
       [](ProcessGroup& group) { group.all_reduce(ones(6)); },
       {"of 5 Float", "of 6 Float", "collective #2"}},
      {"asynchronous, the first of three",
       [](ProcessGroup& group) {
         std::vector<Work> works;
         for (const int count : {7, 8, 9}) works.push_back(group.all_reduce_async(ones(count)));
         for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
       },
       [](ProcessGroup& group) {
         std::vector<Work> works;
         for (const int count : {17, 8, 9}) works.push_back(group.all_reduce_async(ones(count)));
         for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
       },
       {"of 7 Float", "of 17 Float", "collective #2"}},
      {"parts",
       [](ProcessGroup& group) { group.all_gather(ones(3)); },
       [](ProcessGroup& group) { group.all_gather_into_tensor(ones(4 * group.world_size()), ones(4)); },
       {"all_gather of 3 Float", "all_gather of 4 Float"}},
  };
  return all;
}

class Difference : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

// Each difference has a group of its own; other groups are not affected.
TEST_P(Difference, IsToldToEveryRankWithBothCalls) {
  const auto [backend, world] = GetParam();
  run_ranks(world, backend, [](ProcessGroup& group) {
    std::vector<int> everybody(group.world_size());
    std::iota(everybody.begin(), everybody.end(), 0);
    for (const auto& difference : all_differences()) {
      SCOPED_TRACE(difference.name);
      const auto doomed = group.new_group(everybody);
      doomed->all_reduce(ones(4));  // the ranks agree so far
      const auto first = message_of<MismatchError>(
          [&] { group.rank() == 1 ? difference.one(*doomed) : difference.most(*doomed); });
      for (const auto* words : difference.words) EXPECT_THAT(first, HasSubstr(words));
      EXPECT_THAT(first, AllOf(HasSubstr("the ranks do not make the same call"), HasSubstr("rank 1"),
                               HasSubstr("(pid "), HasSubstr("hint:")));
      // The error is repeated, although the ranks agree now.
      EXPECT_EQ(message_of<MismatchError>([&] { doomed->barrier(); }), first);
    }
    auto tensor = ones(4);
    group.all_reduce(tensor);
    EXPECT_EQ(tensor.sum().item<int>(), 4 * group.world_size());
  });
}

INSTANTIATE_TEST_SUITE_P(World, Difference,
                         ::testing::Values(std::tuple("gloo", 2), std::tuple("gloo", 3),
                                           std::tuple("hybrid", 2), std::tuple("hybrid", 3),
                                           std::tuple("hybrid", 4)),
                         [](const auto& param) {
                           return std::get<0>(param.param) + std::to_string(std::get<1>(param.param));
                         });

// A late rank gets the error on which the others have already given up.
TEST(DifferenceInDetail, IsToldToALateRankAndToCallsUnderWay) {
  run_ranks(3, "gloo", [](ProcessGroup& group) {
    const auto doomed = group.new_group({0, 1, 2});
    const bool late = group.rank() == 1;
    auto other = group.all_reduce_async(ones(1));
    if (late) std::this_thread::sleep_for(1s);  // longer than a wait regards as usual
    auto first = doomed->all_reduce_async(ones(late ? 3 : 4));
    auto second = doomed->all_reduce_async(ones(late ? 4 : 3));
    const auto message = message_of<MismatchError>([&] { first.wait(); });
    EXPECT_THAT(message, AllOf(HasSubstr("of 3 Float"), HasSubstr("of 4 Float")));
    EXPECT_TRUE(first.is_done());
    EXPECT_EQ(message_of<MismatchError>([&] { first.wait(); }), message);
    EXPECT_EQ(message_of<MismatchError>([&] { second.wait(); }), message);
    other.wait();
  });
}

TEST(DifferenceInDetail, OfAMessageAndItsReceiver) {
  run_ranks(2, "gloo", [](ProcessGroup& group) {
    struct Message {
      at::Tensor sent, received;
      const char* words[2];
    };
    const std::vector<Message> messages = {
        {ones(4, at::kInt), ones(3), {"send of 4 Int, tag 7", "recv of 3 Float, tag 7"}},
        {ones(3), ones(4), {"send of 3 Float", "recv of 4 Float"}},
        {ones(3), ones(3, at::kInt), {"send of 3 Float", "recv of 3 Int"}},
        {ones(1500), ones(1000), {"send of 1500 Float", "recv of 1000 Float"}},
        {ones(0), ones(1), {"send of 0 Float", "recv of 1 Float"}}};
    for (const auto& message : messages) {
      SCOPED_TRACE(message.words[0]);
      const auto doomed = group.new_group({0, 1});
      const auto text = message_of<MismatchError>([&] {
        group.rank() == 0 ? doomed->send(message.sent, 1, 7) : doomed->recv(message.received, 0, 7);
      });
      for (const auto* words : message.words) EXPECT_THAT(text, HasSubstr(words));
      EXPECT_THAT(text, HasSubstr("hint:"));
    }
  });
}

// Each rank waits until its own message is received, and does not wait for the other's.
TEST(DifferenceInDetail, OfMessagesThatCross) {
  run_ranks(2, "gloo", [](ProcessGroup& group) {
    const int other = 1 - group.rank();
    auto receiving = group.recv_async(ones(3), other);
    EXPECT_THAT(message_of<MismatchError>([&] { group.send(ones(4), other); }),
                AllOf(HasSubstr("send of 4 Float"), HasSubstr("recv of 3 Float")));
  });
}

// The comparison must not impose an order that the calls themselves do not have.
TEST(Agreement, LeavesHealthyTrafficAlone) {
  run_ranks(3, "gloo", [](ProcessGroup& group) {
    const int rank = group.rank(), world = group.world_size();
    const int next = (rank + 1) % world, previous = (rank + world - 1) % world;
    for (int round = 0; round < 30; ++round) {
      // Rank 0 reduces before it receives; rank 1 reduces after it has sent.
      auto sum = ones(1000);
      auto message = at::full({5}, round);
      if (rank == 0) {
        auto reducing = group.all_reduce_async(sum);
        auto received = at::zeros({5}, at::kLong);
        group.recv(received, 1);
        EXPECT_EQ(received[4].item<int>(), round);
        reducing.wait();
      } else {
        if (rank == 1) group.send(message, 0);
        group.all_reduce(sum);
      }
      EXPECT_EQ(sum[999].item<int>(), world);

      // Messages are received in a different order than they were sent.
      auto small = at::zeros({2}), large = at::zeros({3000});
      std::vector<Work> works;
      works.push_back(group.recv_async(small, previous, 1));
      works.push_back(group.recv_async(large, previous, 2));
      works.push_back(group.send_async(at::full({3000}, rank, at::kFloat), next, 2));
      works.push_back(group.send_async(at::full({2}, rank, at::kFloat), next, 1));
      auto nothing = at::empty({0});
      works.push_back(group.all_reduce_async(nothing));
      works.push_back(group.broadcast_async(message, round % world));
      if (round % 3 == rank) std::this_thread::sleep_for(2ms);
      group.barrier();
      for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
      EXPECT_EQ(small[1].item<int>(), previous);
      EXPECT_EQ(large[2999].item<int>(), previous);
    }
  });
}

// The fingerprint of a rank's last call reaches its neighbour, even if the neighbour is late.
TEST(Agreement, ARankMayEndBeforeItsNeighbourHasCome) {
  expect_success(start_ranks(3, [](int rank) {
    const auto group = init_process_group({.backend = "gloo", .timeout = 20s});
    auto tensor = ones(10);
    group->all_reduce(tensor);
    if (rank == 2) std::this_thread::sleep_for(300ms);
    group->reduce(tensor, 0);
    group->reduce(tensor, 0);
  }));
}

// A Work that nobody waits for still takes part in the comparison.
TEST(Agreement, OutlivesAWorkThatWasDropped) {
  run_ranks(2, "gloo", [](ProcessGroup& group) {
    for (int i = 0; i < 20; ++i) static_cast<void>(group.all_reduce_async(ones(100)));
    auto tensor = ones(3);
    group.all_reduce(tensor);
    EXPECT_EQ(tensor.sum().item<int>(), 6);
  });
}

}  // namespace
}  // namespace lockstep::testing
