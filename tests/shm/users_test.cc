// Jobs of two users on one machine do not interfere.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <ATen/ATen.h>

#include "base/port.h"
#include "shm/mixture.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

// Changes the process to this user.
void become(unsigned user) {
  ASSERT_EQ(::setgid(user), 0);
  ASSERT_EQ(::setuid(user), 0);
  // The change of user resets both settings.
  ::prctl(PR_SET_DUMPABLE, 1);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
}

TEST(Users, JobsOfTwoSideBySide) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  constexpr int kWorld = 2;
  const base::PortReservation first(base::Reach::ThisMachine), second(base::Reach::ThisMachine);
  // Four processes: two jobs of two ranks, each of a different user.
  expect_success(start_ranks(2 * kWorld,
                             [](int process) {
                               become(process < kWorld ? 65534 : 65533);
                               if (::testing::Test::HasFailure()) return;
                               const auto group = init_process_group({.backend = "shm", .timeout = 20s});
                               auto tensor = at::full({10'000}, process);
                               group->all_reduce(tensor);
                               EXPECT_EQ(tensor.ne(process < kWorld ? 0 + 1 : 2 + 3).sum().item<int64_t>(),
                                         0);
                               EXPECT_TRUE(Mixture(*group, 3).run(200));
                             },
                             {.environment = [&](int process) {
                               const auto rank = std::to_string(process % kWorld);
                               const auto& port = process < kWorld ? first : second;
                               return Environment{{"RANK", rank},
                                                  {"LOCAL_RANK", rank},
                                                  {"WORLD_SIZE", std::to_string(kWorld)},
                                                  {"LOCAL_WORLD_SIZE", std::to_string(kWorld)},
                                                  {"MASTER_PORT", std::to_string(port.port())}};
                             }}));
}

}  // namespace
}  // namespace lockstep::testing
