// A rank is killed before a call of each kind, or in the middle of one. Every other rank immediately gets an
// error that names it, and repeats this error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <thread>
#include <unistd.h>

#include "shm/kinds.h"
#include "shm/local_ranks.h"
#include "shm/shared.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr int kRanks = 3;
constexpr int64_t kLarge = 250'000;
constexpr int64_t kSoonMs = 5000;  // the timeout is twelve times as long

struct DeathScene {
  std::atomic<int> victims_pid{0};
  std::atomic<int64_t> struck_ms{0};
  std::atomic<int> informed{0};
};

enum class Moment { Before, Amid };

[[noreturn]] void die(const Kind& kind, ProcessGroup& group, Moment moment, DeathScene& scene) {
  scene.victims_pid = ::getpid();
  const auto strike = [&] {
    scene.struck_ms = now_ms();
    ::kill(::getpid(), SIGKILL);
  };
  if (moment == Moment::Before) strike();
  std::atomic<int> rounds{0};
  std::thread killer([&] {
    while (rounds < 3) std::this_thread::yield();
    std::this_thread::sleep_for(100us);  // in the middle of the next round
    strike();
  });
  for (;; ++rounds) kind.run(group, kLarge);
}

void survive(const Kind& kind, ProcessGroup& group, int victim, DeathScene& scene) {
  std::string first;
  try {
    // A rank that only gives data may complete a call before it notices.
    for (;;) kind.run(group, kLarge);
  } catch (const PeerLostError& error) {
    first = error.what();
  }
  EXPECT_LT(now_ms() - scene.struck_ms, kSoonMs);
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  EXPECT_THAT(first, AllOf(HasSubstr("rank " + std::to_string(victim)),
                           HasSubstr("pid " + std::to_string(scene.victims_pid)), HasSubstr(host),
                           HasSubstr("hint:")));
  const auto again = now_ms();
  for (int i = 0; i < 2; ++i) {
    try {
      kind.run(group, 10);
      ADD_FAILURE() << "a poisoned group works";
    } catch (const PeerLostError& error) {
      EXPECT_EQ(error.what(), first);
    }
  }
  EXPECT_LT(now_ms() - again, 1000);
  // No survivor ends before all have seen the death of the first rank.
  ++scene.informed;
  EXPECT_TRUE(eventually([&] { return scene.informed == kRanks - 1; }));
}

class Death : public ::testing::TestWithParam<std::tuple<size_t, int>> {
 protected:
  void expect_all_informed(Moment moment) {
    const auto& kind = all_kinds().at(std::get<0>(GetParam()));
    const int victim = std::get<1>(GetParam());
    const Shared<DeathScene> scene;
    const auto outcomes = start_ranks(kRanks,
                                      [&](int rank) {
                                        const auto group =
                                            init_process_group({.backend = "shm", .timeout = 60s});
                                        group->barrier();
                                        if (rank == victim) die(kind, *group, moment, *scene);
                                        survive(kind, *group, victim, *scene);
                                      },
                                      {.deadline = 30s});
    for (const auto& outcome : outcomes) {
      if (outcome.rank == victim) {
        EXPECT_EQ(outcome.signal, SIGKILL) << outcome.describe();
      } else {
        EXPECT_EQ(outcome.exit_status, 0) << outcome.describe();
      }
    }
  }
};

TEST_P(Death, BeforeTheCall) { expect_all_informed(Moment::Before); }
TEST_P(Death, AmidTheCall) { expect_all_informed(Moment::Amid); }

INSTANTIATE_TEST_SUITE_P(EachKindAndRank, Death,
                         ::testing::Combine(::testing::Range<size_t>(0, all_kinds().size()),
                                            ::testing::Range(0, kRanks)),
                         [](const auto& param) {
                           return all_kinds().at(std::get<0>(param.param)).name + "_Rank" +
                                  std::to_string(std::get<1>(param.param));
                         });

// The survivors have a group of their own, with a call under way.
TEST(DeathInDetail, OtherGroupsGoOn) {
  const auto outcomes = start_ranks(4, [](int rank) {
    const auto group = init_process_group({.backend = "shm", .timeout = 60s});
    const auto doomed = group->new_group({0, 1, 3});
    const auto alive = group->new_group({0, 1, 2});
    group->barrier();
    if (rank == 3) ::raise(SIGKILL);
    for (int round = 0; round < 20; ++round) {
      auto tensor = at::ones({100'000});
      auto under_way = alive->all_reduce_async(tensor);
      auto lost = at::ones({10});
      if (rank != 2) {
        EXPECT_THROW(doomed->all_reduce(lost), PeerLostError);
      }
      under_way.wait();
      EXPECT_EQ(tensor.ne(3).sum().item<int64_t>(), 0);
    }
    EXPECT_THROW(group->barrier(), PeerLostError);
    alive->barrier();
  });
  for (const int rank : {0, 1, 2}) EXPECT_EQ(outcomes[rank].exit_status, 0) << outcomes[rank].describe();
}

TEST(DeathInDetail, CallsInFlightAllEnd) {
  const auto outcomes = start_ranks(2, [](int rank) {
    const auto group = init_process_group({.backend = "shm", .timeout = 60s});
    group->barrier();
    if (rank == 1) ::raise(SIGKILL);
    std::vector<Work> works;
    try {
      for (const auto& kind : all_kinds())
        for (auto& work : kind.start(*group, 1000)) works.push_back(work);
    } catch (const PeerLostError&) {  // noticed while starting calls
    }
    int lost = 0;
    for (auto& work : works) {
      try {
        work.wait();
      } catch (const PeerLostError&) {
        ++lost;
      }
    }
    EXPECT_GE(lost + (works.empty() ? 1 : 0), 1);
    EXPECT_THROW(group->barrier(), PeerLostError);
  });
  EXPECT_EQ(outcomes[0].exit_status, 0) << outcomes[0].describe();
}

}  // namespace
}  // namespace lockstep::testing
