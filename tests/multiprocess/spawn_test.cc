// spawn() in programs that use torch and start their ranks themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

// Runs each test in a process of its own, like a program: spawn() forks, and needs a process without a
// history.
void as_a_program(const std::function<void()>& program) {
  expect_success(start_ranks(1, [&](int) { program(); }, {.environment = [](int) {
                               return Environment{{"RANK", ""},        {"WORLD_SIZE", ""},
                                                  {"MASTER_ADDR", ""}, {"MASTER_PORT", ""},
                                                  {"LOCAL_RANK", ""},  {"LOCAL_WORLD_SIZE", ""}};
                             }}));
}

TEST(Spawn, RanksFindEachOtherAndTheParentsMemory) {
  as_a_program([] {
    // Large enough to start the parent's OpenMP pool before the fork.
    const auto data = at::ones({1 << 20}).add_(1).mul_(2);
    spawn(3, [&](int rank) {
      const auto group = init_process_group({.timeout = 20s});
      if (group->rank() != rank || group->world_size() != 3) throw std::logic_error("wrong rank");
      auto tensor = data * (rank + 1);
      group->all_reduce(tensor);
      if (tensor.sum().item<double>() != 24.0 * (1 << 20)) throw std::logic_error("wrong sum");
    });
    EXPECT_EQ(std::getenv("RANK"), nullptr) << "the parent's environment was changed";
  });
}

TEST(Spawn, TheFirstErrorComesBackAndThePeersAreStopped) {
  as_a_program([] {
    try {
      spawn(3, [](int rank) {
        const auto group = init_process_group({.timeout = 60s});
        if (rank == 1) throw MismatchError("rank one has another opinion");
        group->barrier();  // would wait for one minute
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const MismatchError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1 of 3 failed"), HasSubstr("another opinion")));
    }
  });
}

TEST(Spawn, ARankThatIsKilledIsTheOneReported) {
  as_a_program([] {
    try {
      spawn(3, [](int rank) {
        const auto group = init_process_group({.timeout = 60s});
        group->barrier();
        if (rank == 2) ::raise(SIGKILL);
        group->barrier();  // fails because of rank 2
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const PeerLostError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 2 of 3 failed"), HasSubstr("signal 9")));
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
