// If a rank dies or stops responding, the others must soon get an error that names it, and repeat this error.
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thread>

#include <ATen/ATen.h>

#include "base/deadline.h"
#include "comm/generation.h"
#include "comm/group.h"
#include "rendezvous/identity.h"
#include "rendezvous/meet.h"
#include "rendezvous/open_store.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

// Reduces until a call fails. A survivor checks that the group repeats the error, prints it and exits with 1.
std::vector<RankOutcome> train_into(const Fault& fault, int world, std::chrono::milliseconds timeout,
                                    const std::string& backend) {
  return start_ranks(world,
                     [=](int rank) {
                       const auto group = init_process_group({.backend = backend, .timeout = timeout});
                       std::string first;
                       try {
                         for (int step = 0; step < 10; ++step) {
                           fault.reach(rank, step);
                           auto tensor = at::ones({1000});
                           group->all_reduce(tensor);
                         }
                       } catch (const Error& error) {
                         first = error.what();
                       }
                       auto tensor = at::ones({1000});
                       try {
                         group->all_reduce(tensor);
                         ADD_FAILURE() << "a poisoned group works";
                       } catch (const Error& error) {
                         EXPECT_EQ(error.what(), first);
                         throw;
                       }
                     },
                     {.deadline = 30s, .environment = environment_for(backend, world)});
}

class PeerLoss : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  const std::string& backend() const { return std::get<0>(GetParam()); }
  int victim() const { return std::get<1>(GetParam()); }
  std::string victims_name() const { return "rank " + std::to_string(victim()) + " (pid"; }
};

TEST_P(PeerLoss, AKilledRankIsNamedByItsPeers) {
  const auto outcomes = train_into(Fault::kill_at(victim(), 3), 3, 20s, backend());
  EXPECT_EQ(outcomes[victim()].signal, SIGKILL);
  for (const auto& outcome : outcomes) {
    if (outcome.rank == victim()) continue;
    EXPECT_FALSE(outcome.hung);
    EXPECT_EQ(outcome.exit_status, 1) << outcome.describe();
    EXPECT_THAT(outcome.output,
                AllOf(HasSubstr("PeerLostError: "), HasSubstr("all_reduce of 1000 Float, Sum"),
                      HasSubstr(victims_name()), HasSubstr("hint:")))
        << outcome.describe();
    // Gloo's own message would not help the user.
    if (backend() == "gloo") {
      EXPECT_THAT(outcome.output, AllOf(HasSubstr("PeerLostError: all_reduce of 1000 Float, Sum failed"),
                                        HasSubstr("has ended")));
    }
  }
}

TEST_P(PeerLoss, ARankThatMadeFewerStepsIsToldApartFromOneThatFailed) {
  const auto outcomes = start_ranks(3,
                                    [this](int rank) {
                                      const auto group =
                                          init_process_group({.backend = backend(), .timeout = 20s});
                                      auto tensor = at::ones({1000});
                                      for (int step = 0; step < (rank == victim() ? 3 : 5); ++step)
                                        group->all_reduce(tensor);
                                    },
                                    {.environment = environment_for(backend(), 3)});
  EXPECT_EQ(outcomes[victim()].exit_status, 0) << outcomes[victim()].describe();
  std::string everything;
  for (const auto& outcome : outcomes) {
    if (outcome.rank == victim()) continue;
    EXPECT_EQ(outcome.exit_status, 1) << outcome.describe();
    everything += outcome.output;
  }
  EXPECT_THAT(everything, AllOf(HasSubstr("PeerLostError: "), HasSubstr(victims_name()),
                                HasSubstr("it made fewer steps: decide together when to stop"),
                                HasSubstr("all_agree"), HasSubstr("Join")));
}

TEST_P(PeerLoss, ASilentRankIsNamedByItsPeers) {
  const auto outcomes = train_into(Fault::stop_at(victim(), 3), 3, 2s, backend());
  EXPECT_TRUE(outcomes[victim()].hung);
  std::string everything;
  for (const auto& outcome : outcomes) {
    if (outcome.rank == victim()) continue;
    EXPECT_FALSE(outcome.hung) << outcome.describe();
    EXPECT_EQ(outcome.exit_status, 1) << outcome.describe();
    // When one rank gives up and leaves, the other one may see that first.
    EXPECT_THAT(outcome.output, AnyOf(HasSubstr("TimeoutError: "), HasSubstr("PeerLostError: ")));
    EXPECT_THAT(outcome.output, AllOf(HasSubstr("all_reduce"), HasSubstr("hint:")));
    everything += outcome.output;
  }
  EXPECT_THAT(everything, HasSubstr(backend() == "gloo" ? "stopped: " + victims_name() : victims_name()));
}

INSTANTIATE_TEST_SUITE_P(EachRank, PeerLoss,
                         ::testing::Combine(::testing::Values("gloo", "shm", "hybrid"),
                                            ::testing::Values(0, 1, 2)),
                         [](const auto& param) {
                           return std::get<0>(param.param) + "_Rank" +
                                  std::to_string(std::get<1>(param.param));
                         });

class OtherGroups : public ::testing::TestWithParam<std::string> {};

TEST_P(OtherGroups, OfRanksThatAreAliveGoOn) {
  const auto outcomes = start_ranks(3,
                                    [](int rank) {
                                      const auto group =
                                          init_process_group({.backend = GetParam(), .timeout = 20s});
                                      const auto doomed = group->new_group({0, 2});
                                      const auto alive = group->new_group({0, 1});
                                      group->barrier();
                                      if (rank == 2) ::raise(SIGKILL);
                                      auto tensor = at::ones({10});
                                      if (rank == 0) {
                                        EXPECT_THROW(doomed->all_reduce(tensor), PeerLostError);
                                        tensor.fill_(1);
                                      }
                                      alive->all_reduce(tensor);
                                      EXPECT_EQ(tensor[0].item<int>(), 2);
                                    },
                                    {.environment = environment_for(GetParam(), 3)});
  EXPECT_EQ(outcomes[2].signal, SIGKILL);
  for (const int rank : {0, 1}) EXPECT_EQ(outcomes[rank].exit_status, 0) << outcomes[rank].describe();
}

INSTANTIATE_TEST_SUITE_P(Backends, OtherGroups, ::testing::Values("gloo", "shm", "hybrid"),
                         [](const auto& param) { return param.param; });

// Gloo only.
TEST(PeerLossInDetail, ATimeoutSaysWhoIsNotThere) {
  const auto outcomes = train_into(Fault::stop_at(1, 3), 2, 2s, "gloo");
  EXPECT_THAT(outcomes[0].output, AllOf(HasSubstr("TimeoutError: all_reduce of 1000 Float, Sum failed"),
                                        HasSubstr("no answer within 2.0 s"),
                                        HasSubstr("stopped: rank 1 (pid"), HasSubstr("hint:")))
      << outcomes[0].describe();
}

TEST(PeerLossInDetail, ATimeoutSaysWhatTheOthersWaitFor) {
  const auto outcomes = start_ranks(4,
                                    [](int rank) {
                                      const auto group =
                                          init_process_group({.backend = "gloo", .timeout = 3s});
                                      // Rank 2 never arrives. Rank 0 only gives data, and continues without
                                      // it.
                                      if (rank == 2) std::this_thread::sleep_for(5s);
                                      if (rank == 2) return;
                                      group->gather(at::ones({10}), 1);
                                      group->barrier();
                                    },
                                    {.deadline = 20s});
  std::string everything;
  for (const auto& outcome : outcomes) everything += outcome.output;
  // The rank that times out first sees where the others wait.
  EXPECT_THAT(everything,
              AllOf(HasSubstr("TimeoutError: "), HasSubstr("not waiting in any collective: rank 2 (pid"),
                    AnyOf(HasSubstr("was waiting in #2 barrier"),
                          HasSubstr("was waiting in #1 gather of 10 Float, root 1"))))
      << everything;
}

TEST(PeerLossInDetail, ADeadPeerBeforeConnecting) {
  const auto outcomes = start_ranks(2, [](int rank) {
    const auto group = init_process_group({.backend = "gloo", .timeout = 4s});
    if (rank == 1) std::_Exit(3);
    group->new_group({0, 1});
  });
  EXPECT_EQ(outcomes[0].exit_status, 1) << outcomes[0].describe();
  EXPECT_THAT(outcomes[0].output, AllOf(HasSubstr("Error: "), HasSubstr("missing: rank 1")));
}

// Gloo waits for the rank that it communicates with, and does not see that a third one has ended.
TEST(PeerLossInDetail, AWaitForALivingRankEndsWhenAThirdOneDies) {
  for (const bool message : {false, true}) {
    const auto outcomes =
        start_ranks(3,
                    [=](int rank) {
                      const auto group = init_process_group({.backend = "gloo", .timeout = 50s});
                      const auto large = at::ones({1 << 22});
                      if (rank == 2) ::raise(SIGKILL);
                      if (rank == 1) ::raise(SIGSTOP);
                      // Rank 0 only sends to rank 1, which is alive but receives nothing.
                      message ? group->send(large, 1) : static_cast<void>(group->gather(large, 1));
                    },
                    {.deadline = 30s});
    EXPECT_FALSE(outcomes[0].hung) << outcomes[0].describe();
    EXPECT_THAT(outcomes[0].output,
                AllOf(HasSubstr("PeerLostError: "), HasSubstr("rank 2 (pid"), HasSubstr("has ended")))
        << outcomes[0].describe();
  }
}

// A rank that ends regularly is not lost, no matter how long the others continue.
TEST(PeerLossInDetail, ARankThatHasFinishedIsNotLost) {
  expect_success(start_ranks(3, [](int rank) {
    const auto group = init_process_group({.backend = "gloo", .timeout = 20s});
    auto tensor = at::ones({10});
    group->reduce(tensor, 0);  // rank 1 has nothing more to do and ends
    if (rank == 1) return;
    if (rank == 2) std::this_thread::sleep_for(1500ms);
    auto pair = at::ones({10});
    rank == 2 ? group->send(pair, 0) : group->recv(pair, 2);
  }));
}

// A rank dies after the rendezvous, before it connects to the others.
TEST_P(OtherGroups, ADeathBetweenMeetingAndConnectingIsKnown) {
  const auto outcomes = start_ranks(3,
                                    [](int rank) {
                                      if (rank != 1) {
                                        init_process_group({.backend = GetParam(), .timeout = 50s});
                                        return;
                                      }
                                      const auto identity = rendezvous::identify(rendezvous::NeedMaster::Yes);
                                      const auto deadline = base::Deadline::in(20s);
                                      const auto store = rendezvous::open_store(
                                          rendezvous::meeting_point("env://", identity), identity, deadline);
                                      auto facts = rendezvous::facts_of_this_process(1, 3);
                                      facts.backend = GetParam();
                                      facts.link = "gloo";
                                      rendezvous::meet(*store->under("0/0"), facts, deadline);
                                      ::raise(SIGKILL);
                                    },
                                    {.deadline = 30s});
  EXPECT_EQ(outcomes[1].signal, SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_FALSE(outcomes[rank].hung) << outcomes[rank].describe();
    EXPECT_THAT(outcomes[rank].output, AllOf(HasSubstr("PeerLostError: "), HasSubstr("rank 1")))
        << outcomes[rank].describe();
  }
}

// Rank 0 hosts the store.
class RankZero : public ::testing::TestWithParam<std::tuple<std::string, int, int>> {};

TEST_P(RankZero, MayStopOrDieAtAnyPointOfInit) {
  const auto backend = std::get<0>(GetParam());
  const int signal = std::get<1>(GetParam());
  const int delay_ms = std::get<2>(GetParam());
  const auto outcomes = start_ranks(3,
                                    [=](int rank) {
                                      std::thread([=] {
                                        std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
                                        if (rank == 0) ::kill(::getpid(), signal);
                                      }).detach();
                                      const auto group =
                                          init_process_group({.backend = backend, .timeout = 2s});
                                      // init_process_group was faster than the signal.
                                      group->new_group({0, 1, 2});
                                      group->barrier();
                                      std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
                                      group->barrier();
                                    },
                                    {.deadline = 20s});
  for (const int rank : {1, 2}) {
    EXPECT_FALSE(outcomes[rank].hung) << outcomes[rank].describe();
    EXPECT_EQ(outcomes[rank].exit_status, 1) << outcomes[rank].describe();
    EXPECT_THAT(outcomes[rank].output, AnyOf(HasSubstr("PeerLostError: "), HasSubstr("TimeoutError: ")))
        << outcomes[rank].describe();
    EXPECT_THAT(outcomes[rank].output, HasSubstr("rank 0")) << outcomes[rank].describe();
  }
}

INSTANTIATE_TEST_SUITE_P(Init, RankZero,
                         ::testing::Combine(::testing::Values("gloo", "shm"),
                                            ::testing::Values(SIGSTOP, SIGKILL),
                                            ::testing::Values(0, 10, 30, 100)),
                         [](const auto& param) {
                           return std::get<0>(param.param) +
                                  (std::get<1>(param.param) == SIGKILL ? "_Killed" : "_Stopped") +
                                  std::to_string(std::get<2>(param.param));
                         });

// Rank 2 ends because of rank 1, and its end is noticed first.
TEST(PeerLossInDetail, ARankThatEndedBecauseOfAnotherIsNotNamed) {
  const auto outcomes =
      start_ranks(3,
                  [](int rank) {
                    const auto group = init_process_group({.backend = "gloo", .timeout = 20s});
                    group->barrier();
                    if (rank == 1)
                      std::this_thread::sleep_for(2s);  // its end would be noticed later than that of rank 2
                    if (rank == 2) {
                      comm::generation_of(*group)->store->blame(1);
                      ::raise(SIGKILL);
                    }
                    if (rank == 0) group->all_reduce(at::ones({10}));
                  },
                  {.deadline = 30s});
  EXPECT_THAT(outcomes[0].output,
              AllOf(HasSubstr("PeerLostError: "), HasSubstr("rank 1 (pid"), Not(HasSubstr("rank 2 (pid"))))
      << outcomes[0].describe();
}

// The store is in rank 0's memory.
TEST(PeerLossInDetail, AGroupThatIsGoneLeavesNothingInTheStore) {
  run_ranks(3, "gloo", [](ProcessGroup& group) {
    const auto identity = rendezvous::identify(rendezvous::NeedMaster::Yes);
    const auto store = rendezvous::open_store(rendezvous::meeting_point("env://", identity), identity,
                                              base::Deadline::in(20s));
    const auto make_and_drop = [&] {
      group.new_group({0, 2});
      group.new_group({0, 1, 2});
      group.new_group({1});
      group.barrier();
    };
    make_and_drop();
    group.barrier();
    // Messages of the other ranks may still be on their way.
    const auto settled = [&] {
      auto count = store->getNumKeys();
      for (const auto deadline = base::Deadline::in(10s); !deadline.expired() && count > 30;
           count = store->getNumKeys()) {
        std::this_thread::sleep_for(1ms);
      }
      return count;
    };
    const auto before = settled();
    for (int i = 0; i < 20; ++i) make_and_drop();
    group.barrier();
    for (const auto deadline = base::Deadline::in(10s);
         store->getNumKeys() > before && !deadline.expired();) {
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_LE(store->getNumKeys(), before);
    group.barrier();
  });
}

}  // namespace
}  // namespace lockstep::testing
