// A rank is stopped in the middle of an all-reduce or an update, and continues after the others have given
// up. It must not write to memory that the others use again.
#include <atomic>
#include <csignal>
#include <fmt/format.h>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <ATen/ATen.h>

#include "comm/from_tensors.h"
#include "comm/generation.h"
#include "comm/group.h"
#include "comm/update.h"
#include "shm/local_ranks.h"
#include "shm/shared.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

struct SleeperScene {
  std::atomic<int> sleepers_pid{0};
  std::atomic<int> waiting{0};  // trials that the other rank has begun
  std::atomic<int> woken{0};    // trials that the sleeper has finished
  std::atomic<int> struck{0};   // trials in which it was stopped in the middle
};

bool is_stopped(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  const auto name_end = line.rfind(") ");
  return name_end != std::string::npos && line[name_end + 2] == 'T';
}

constexpr int kTrials = 6;
constexpr int64_t kElements = 16 << 20;

void sleep_now_and_then(ProcessGroup& group, SleeperScene& scene) {
  scene.sleepers_pid = ::getpid();
  for (int trial = 0; trial < kTrials && scene.struck == 0; ++trial) {
    const auto doomed = group.new_group({0, 1});
    auto tensor = doomed->empty({kElements}, at::kFloat);
    tensor.fill_(1);
    while (scene.waiting <= trial) std::this_thread::yield();
    try {
      doomed->all_reduce(tensor);
    } catch (const TimeoutError&) {
    }
    scene.woken = trial + 1;
    group.barrier();
  }
}

void survive(ProcessGroup& group, SleeperScene& scene) {
  for (int trial = 0; trial < kTrials && scene.struck == 0; ++trial) {
    const auto doomed = group.new_group({0, 1});
    auto tensor = doomed->empty({kElements}, at::kFloat);
    tensor.fill_(1);
    auto neighbour = doomed->empty({1000}, at::kFloat);
    neighbour.fill_(5);
    auto work = doomed->all_reduce_async(tensor);
    scene.waiting = trial + 1;
    // When there are results, the sleeper has begun.
    const volatile float* first = tensor.data_ptr<float>();
    while (*first == 1) {
    }
    ::kill(scene.sleepers_pid, SIGSTOP);
    EXPECT_TRUE(eventually([&] { return is_stopped(scene.sleepers_pid); }));
    bool given_up = false;
    try {
      work.wait();
    } catch (const TimeoutError&) {
      given_up = true;
    }
    const auto sums = tensor.eq(2).sum().item<int64_t>();
    if (given_up) {
      EXPECT_GT(sums, 0);
      EXPECT_LT(sums, kElements);
      EXPECT_EQ(neighbour.ne(5).sum().item<int64_t>(), 0);
      scene.struck = 1;
    }
    tensor.fill_(7);  // the memory is this rank's again
    ::kill(scene.sleepers_pid, SIGCONT);
    EXPECT_TRUE(eventually([&] { return scene.woken > trial; }, 20s));
    EXPECT_EQ(tensor.ne(7).sum().item<int64_t>(), 0) << "written to in trial " << trial;
    // The memory can be used and freed as before.
    tensor.fill_(8);
    neighbour.reset();
    EXPECT_EQ(tensor.ne(8).sum().item<int64_t>(), 0);
    group.barrier();
  }
}

TEST(Sleeper, WakesWithoutWritingToOthersMemory) {
  const Shared<SleeperScene> scene;
  const auto outcomes =
      start_ranks(2,
                  [&](int rank) {
                    const auto group = init_process_group({.backend = "shm", .timeout = 2s});
                    rank == 0 ? survive(*group, *scene) : sleep_now_and_then(*group, *scene);
                  },
                  {.deadline = 60s});
  expect_success(outcomes);
  if (scene->struck == 0) GTEST_SKIP() << "the rank was never stopped in the middle of a chunk";
}

// ---- In an update, whose results go to the parameters of all ranks

class KeepsAverages final : public comm::Transform {
 public:
  void apply(std::byte*, const comm::Range&) override {}
};

class StopsOnTheWay final : public comm::Transform {
 public:
  void apply(std::byte*, const comm::Range&) override {
    if (++blocks_ == 40) ::raise(SIGSTOP);
  }

 private:
  int blocks_ = 0;
};

TEST(Sleeper, WakesWithoutWritingToOthersParameters) {
  const Shared<SleeperScene> scene;
  const auto outcomes =
      start_ranks(2,
                  [&](int rank) {
                    const auto group = init_process_group({.backend = "shm", .timeout = 2s});
                    const auto doomed = group->new_group({0, 1});
                    auto gradients = doomed->empty({kElements}, at::kFloat);
                    auto parameters = doomed->empty({kElements}, at::kFloat);
                    gradients.fill_(1);
                    parameters.fill_(3);
                    if (rank == 1) scene->sleepers_pid = ::getpid();
                    doomed->barrier();
                    auto request = comm::all_reduce_of(gradients, ReduceOp::Sum);
                    request.root = comm::kUpdates;
                    request.take[0].data = static_cast<std::byte*>(parameters.data_ptr());
                    KeepsAverages keeps;
                    StopsOnTheWay stops;
                    auto& transform = rank == 0 ? static_cast<comm::Transform&>(keeps) : stops;
                    EXPECT_THROW(comm::update(*comm::generation_of(*doomed), request, transform), Error);
                    if (rank == 1) {
                      scene->woken = 1;
                    } else {
                      EXPECT_EQ(parameters[0].item<float>(), 2);
                      parameters.fill_(7);  // the memory is this rank's again
                      ::kill(scene->sleepers_pid, SIGCONT);
                      EXPECT_TRUE(eventually([&] { return scene->woken == 1; }, 20s));
                      EXPECT_EQ(parameters.ne(7).sum().item<int64_t>(), 0);
                    }
                    group->barrier();
                  },
                  {.deadline = 60s});
  expect_success(outcomes);
}

// ---- Which rank the error names

struct BlameScene {
  std::atomic<int> sleepers_pid{0};
  std::atomic<int> rounds{0};
  std::atomic<int> informed{0};
};

// Where the sleeper is stopped: in a claimed chunk (registered memory), in a round (ordinary memory), or
// before the call.
enum class Asleep { InClaims, InRounds, Elsewhere };

class Blame : public ::testing::TestWithParam<Asleep> {};

TEST_P(Blame, FallsOnTheSleeperAlone) {
  const Shared<BlameScene> scene;
  const auto outcomes = start_ranks(
      4,
      [&](int rank) {
        const auto group = init_process_group({.backend = "shm", .timeout = 2s});
        auto tensor = GetParam() == Asleep::InClaims ? group->empty({4 << 20}, at::kFloat)
                                                     : at::empty({4 << 20}, at::kFloat);
        tensor.fill_(0);
        if (rank == 1) scene->sleepers_pid = ::getpid();
        group->barrier();
        std::thread strikes;
        if (rank == 0 && GetParam() != Asleep::Elsewhere) {
          strikes = std::thread([&] {
            while (scene->rounds < 3) std::this_thread::yield();
            std::this_thread::sleep_for(1ms);  // in the middle of the next round
            ::kill(scene->sleepers_pid, SIGSTOP);
          });
        }
        std::string said;
        try {
          for (int round = 0;; ++round) {
            if (rank == 1 && round == 2 && GetParam() == Asleep::Elsewhere) ::raise(SIGSTOP);
            group->all_reduce(tensor);
            if (rank == 1) ++scene->rounds;
          }
        } catch (const TimeoutError& error) {
          said = error.what();
        }
        if (strikes.joinable()) strikes.join();
        EXPECT_THAT(said, ::testing::HasSubstr("rank 1 (pid"));
        for (const int healthy : {0, 2, 3}) {
          EXPECT_THAT(said, ::testing::Not(::testing::HasSubstr(fmt::format("rank {} (pid", healthy))));
        }
        // No rank ends before all have got their errors.
        ++scene->informed;
        EXPECT_TRUE(eventually([&] { return scene->informed == 3; }, 20s));
      },
      {.deadline = 60s});
  for (const auto& outcome : outcomes) {
    EXPECT_TRUE(outcome.rank == 1 || outcome.exit_status == 0) << outcome.describe();
  }
}

std::string name_of_sleep(const ::testing::TestParamInfo<Asleep>& info) {
  static const std::vector<std::string> names = {"InClaims", "InRounds", "Elsewhere"};
  return names.at(static_cast<size_t>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Asleep, Blame,
                         ::testing::Values(Asleep::InClaims, Asleep::InRounds, Asleep::Elsewhere),
                         name_of_sleep);

}  // namespace
}  // namespace lockstep::testing
