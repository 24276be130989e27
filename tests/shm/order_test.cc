// Many calls of all kinds and sizes in flight at once: on one group, on several groups from several threads,
// on groups that share members, and with more ranks than cores.
#include <atomic>
#include <gtest/gtest.h>
#include <thread>

#include <ATen/ATen.h>

#include "shm/local_ranks.h"
#include "shm/mixture.h"
#include "support/data.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

TEST(Order, TenThousandMixedCalls) {
  run_ranks(3, "shm", [](ProcessGroup& group) { EXPECT_TRUE(Mixture(group, 20240607).run(10'000)); });
}

TEST(Order, MoreRanksThanCores) {
  run_ranks(
      8, "shm", [](ProcessGroup& group) { EXPECT_TRUE(Mixture(group, 8).run(200)); }, 20s);
}

TEST(Order, TwoThreadsWithAGroupEach) {
  run_ranks(3, "shm", [](ProcessGroup& group) {
    const auto other = group.new_group({0, 1, 2});
    std::atomic<int> right{0};
    std::thread thread([&] { right += Mixture(*other, 1).run(500) ? 1 : 0; });
    right += Mixture(group, 2).run(500) ? 1 : 0;
    thread.join();
    EXPECT_EQ(right, 2);
  });
}

TEST(Order, GroupsThatShareMembers) {
  const std::vector<std::vector<int>> memberships = {{0, 1}, {1, 2}, {2, 3}, {0, 3}, {0, 1, 2}, {1, 2, 3}};
  run_ranks(4, "shm", [&](ProcessGroup& group) {
    std::vector<std::shared_ptr<ProcessGroup>> groups;
    for (const auto& members : memberships) groups.push_back(group.new_group(members));
    for (int round = 0; round < 100; ++round) {
      std::vector<Work> works;
      std::vector<at::Tensor> tensors;
      for (const auto& some : groups) {
        tensors.push_back(at::full({100 * (round + 1)}, group.rank() + round));
        if (some) works.push_back(some->all_reduce_async(tensors.back()));
      }
      // Waits in reverse order, after a call on the whole group.
      group.barrier();
      for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
      for (size_t i = 0; i < groups.size(); ++i) {
        if (!groups[i]) continue;
        int64_t sum = 0;
        for (const int member : memberships[i]) sum += member + round;
        EXPECT_EQ(tensors[i].ne(sum).sum().item<int64_t>(), 0);
      }
      if (::testing::Test::HasFailure()) return;
    }
  });
}

// Ranks as threads of one process, which the thread sanitizer can check.
TEST(Order, RanksThatAreThreads) {
  LocalRanks ranks(3);
  ranks.in_threads([](int rank, c10d_backend& backend) {
    std::mt19937 random(7);
    std::deque<std::pair<WorkPtr, std::function<bool()>>> flights;
    const auto land = [&] {
      EXPECT_TRUE(flights.front().first->wait());
      EXPECT_TRUE(flights.front().second());
      flights.pop_front();
    };
    for (int step = 0; step < 300; ++step) {
      const int64_t count = int64_t{1} << (random() % 16);
      const auto mine = at::full({count}, rank + step % 100, at::kFloat);
      const auto expect = [=](int value, const at::Tensor& tensor) {
        return [=] { return same(tensor, at::full({count}, value, at::kFloat)); };
      };
      switch (random() % 5) {
        case 0:
          flights.emplace_back(all_reduce(backend, {mine}), expect(3 + 3 * (step % 100), mine));
          break;
        case 1:
          flights.emplace_back(broadcast(backend, {mine}, step % 3), expect(step % 3 + step % 100, mine));
          break;
        case 2: {
          const auto all = at::empty({3, count});
          flights.emplace_back(all_gather_base(backend, all, mine), expect(2 + step % 100, all[2]));
          break;
        }
        case 3: {
          const auto received = at::empty({count});
          flights.emplace_back(send(backend, {mine}, (rank + 1) % 3, step), [] { return true; });
          const int previous = (rank + 2) % 3;
          flights.emplace_back(recv(backend, {received}, previous, step),
                               expect(previous + step % 100, received));
          break;
        }
        default:
          flights.emplace_back(backend.barrier(), [] { return true; });
      }
      while (flights.size() > 6) land();
    }
    while (!flights.empty()) land();
  });
}

}  // namespace
}  // namespace lockstep::testing
