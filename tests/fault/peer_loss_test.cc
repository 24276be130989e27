// A rank dies or falls silent: the others must learn who it was, soon, and keep saying so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

// Reduces until something happens; a survivor exits with 1 and prints its error. Afterwards the group repeats
// it.
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
                     {.deadline = 30s});
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
    // What Gloo says itself is of no use to anybody.
    if (backend() == "gloo") {
      EXPECT_THAT(outcome.output, AllOf(HasSubstr("PeerLostError: all_reduce of 1000 Float, Sum failed"),
                                        HasSubstr("has ended")));
    }
  }
}

TEST_P(PeerLoss, ASilentRankIsNamedByItsPeers) {
  const auto outcomes = train_into(Fault::stop_at(victim(), 3), 3, 2s, backend());
  std::string everything;
  EXPECT_TRUE(outcomes[victim()].hung);
  for (const auto& outcome : outcomes) {
    if (outcome.rank == victim()) continue;
    EXPECT_FALSE(outcome.hung) << outcome.describe();
    EXPECT_EQ(outcome.exit_status, 1) << outcome.describe();
    // When one gives up and leaves, the second to notice may see it go.
    EXPECT_THAT(outcome.output, AnyOf(HasSubstr("TimeoutError: "), HasSubstr("PeerLostError: ")));
    EXPECT_THAT(outcome.output, AllOf(HasSubstr("all_reduce"), HasSubstr("hint:")));
    everything += outcome.output;
  }
  // With Gloo it is the store that knows who is where, and rank 0 hosts it.
  const bool only_the_store_knows = backend() == "gloo";
  EXPECT_THAT(everything, HasSubstr(!only_the_store_knows ? victims_name()
                                    : victim() == 0       ? "the store on rank 0 does not answer"
                                                    : "not waiting in any collective: " + victims_name()));
}

INSTANTIATE_TEST_SUITE_P(EachRank, PeerLoss,
                         ::testing::Combine(::testing::Values("gloo", "shm"), ::testing::Values(0, 1, 2)),
                         [](const auto& param) {
                           return std::get<0>(param.param) + "_Rank" +
                                  std::to_string(std::get<1>(param.param));
                         });

class OtherGroups : public ::testing::TestWithParam<std::string> {};

TEST_P(OtherGroups, OfRanksThatAreAliveGoOn) {
  const auto outcomes = start_ranks(3, [](int rank) {
    const auto group = init_process_group({.backend = GetParam(), .timeout = 20s});
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
  });
  EXPECT_EQ(outcomes[2].signal, SIGKILL);
  for (const int rank : {0, 1}) EXPECT_EQ(outcomes[rank].exit_status, 0) << outcomes[rank].describe();
}

INSTANTIATE_TEST_SUITE_P(Backends, OtherGroups, ::testing::Values("gloo", "shm"),
                         [](const auto& param) { return param.param; });

// Of Gloo alone.
TEST(PeerLossInDetail, ATimeoutSaysWhoIsNotThere) {
  const auto outcomes = train_into(Fault::stop_at(1, 3), 2, 2s, "gloo");
  EXPECT_THAT(outcomes[0].output,
              AllOf(HasSubstr("TimeoutError: all_reduce of 1000 Float, Sum failed"),
                    HasSubstr("no answer within 2.0 s"),
                    HasSubstr("not waiting in any collective: rank 1 (pid"), HasSubstr("hint:")))
      << outcomes[0].describe();
}

TEST(PeerLossInDetail, ATimeoutSaysWhatTheOtherWaitsFor) {
  const auto outcomes = start_ranks(2,
                                    [](int rank) {
                                      const auto group =
                                          init_process_group({.backend = "gloo", .timeout = 3s});
                                      auto tensor = at::ones({10});
                                      // The ranks have lost step: one reduces, the other is in a barrier.
                                      rank == 0 ? group->all_reduce(tensor) : group->barrier();
                                    },
                                    {.deadline = 20s});
  std::string both = outcomes[0].output + outcomes[1].output;
  EXPECT_THAT(both, AnyOf(HasSubstr("was waiting in #1 barrier"),
                          HasSubstr("was waiting in #1 all_reduce of 10 Float")))
      << both;
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

}  // namespace
}  // namespace lockstep::testing
