// Ranks that keep others waiting. A stopped rank counts as absent; a late rank changes nothing; waiting ranks
// leave the cores to working ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <thread>
#include <unistd.h>

#include <ATen/ATen.h>

#include "shm/kinds.h"
#include "shm/local_ranks.h"
#include "shm/shared.h"
#include "shm/usage.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr int kWaiters = 3;

class Stopped : public ::testing::TestWithParam<int> {};

// A group for each kind of call, all under way at the same time.
TEST_P(Stopped, ARankIsNamedByThoseWhoNeedIt) {
  struct Scene {
    std::atomic<int> victims_pid{0};
    std::atomic<int> informed{0};
  };
  const int victim = GetParam();
  const Shared<Scene> scene;
  const auto outcomes = start_ranks(
      kWaiters,
      [&](int rank) {
        const auto group = init_process_group({.backend = "shm", .timeout = 2s});
        std::vector<std::shared_ptr<ProcessGroup>> groups;
        for (size_t i = 0; i < all_kinds().size(); ++i) {
          groups.push_back(group->new_group({0, 1, 2}));
          groups.back()->barrier();  // the victim's last call in this group
        }
        if (rank == victim) {
          scene->victims_pid = ::getpid();
          ::raise(SIGSTOP);
        }
        const auto begin = now_ms();
        std::vector<std::vector<Work>> calls;
        for (size_t i = 0; i < all_kinds().size(); ++i)
          calls.push_back(all_kinds()[i].start(*groups[i], 1000));
        for (size_t i = 0; i < all_kinds().size(); ++i) {
          const auto& kind = all_kinds()[i];
          SCOPED_TRACE(kind.name);
          std::string text;
          for (auto& work : calls[i]) {
            try {
              work.wait();
            } catch (const TimeoutError& error) {
              if (text.empty()) text = error.what();
            }
          }
          if (text.empty()) {
            EXPECT_FALSE(kind.needs(rank, victim)) << "nothing was thrown";
            continue;
          }
          EXPECT_THAT(text, AllOf(HasSubstr("rank " + std::to_string(victim)),
                                  HasSubstr("pid " + std::to_string(scene->victims_pid)),
                                  HasSubstr(kind.word), HasSubstr("hint:")));
          // The error also shows the victim's last call, except for messages.
          if (kind.name != "send_and_recv") {
            EXPECT_THAT(text, HasSubstr("barrier"));
          }
          EXPECT_EQ(error_of([&] { kind.run(*groups[i], 10); }), text) << "the group says another thing";
        }
        EXPECT_LT(now_ms() - begin, 7000);
        ++scene->informed;
        EXPECT_TRUE(eventually([&] { return scene->informed == kWaiters - 1; }, 8s));
      },
      {.deadline = 30s});
  for (const auto& outcome : outcomes) {
    if (outcome.rank == victim) {
      EXPECT_TRUE(outcome.hung);
    } else {
      EXPECT_EQ(outcome.exit_status, 0) << outcome.describe();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EachRank, Stopped, ::testing::Range(0, kWaiters),
                         [](const auto& victim) { return "Rank" + std::to_string(victim.param); });

TEST(Late, ARankIsWaitedFor) {
  run_ranks(kWaiters, "shm", [](ProcessGroup& group) {
    for (int late = 0; late < kWaiters; ++late) {
      if (group.rank() == late) std::this_thread::sleep_for(300ms);
      for (const auto& kind : all_kinds()) {
        if (group.rank() == late) std::this_thread::sleep_for(3ms);
        kind.run(group, 10'000);
      }
      if (group.rank() == late) std::this_thread::sleep_for(300ms);
      auto tensor = at::full({100'000}, group.rank());
      group.all_reduce(tensor);
      EXPECT_EQ(tensor.ne(3).sum().item<int64_t>(), 0);
    }
  });
}

TEST(Late, WaitingForARankTakesNoCore) {
  run_ranks(kWaiters, "shm", [](ProcessGroup& group) {
    auto tensor = at::ones({1000});
    group.all_reduce(tensor);
    const double before = cpu_seconds();
    if (group.rank() == 0) std::this_thread::sleep_for(2s);
    group.all_reduce(tensor);
    EXPECT_LT(cpu_seconds() - before, 0.2);
  });
}

TEST(Late, HavingNothingToDoTakesNoCore) {
  run_ranks(kWaiters, "shm", [](ProcessGroup& group) {
    auto tensor = at::ones({1000});
    const auto other = group.new_group({0, 1, 2});
    other->all_reduce(tensor);
    group.all_reduce(tensor);
    const double before = cpu_seconds();
    std::this_thread::sleep_for(1s);
    EXPECT_LT(cpu_seconds() - before, 0.1);
  });
}

}  // namespace
}  // namespace lockstep::testing
