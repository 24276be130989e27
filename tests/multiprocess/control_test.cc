// The control channel: typed values beside the data, over shared memory and over the store.
#include "comm/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>

#include <lockstep/error.h>

#include "comm/generation.h"
#include "comm/group.h"
#include "support/message_of.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class ControlTest : public ::testing::TestWithParam<const char*> {
 protected:
  void run(int world, const std::function<void(ProcessGroup& group, comm::Control& control)>& body) {
    run_ranks(world, GetParam(), [&](ProcessGroup& group) { body(group, comm::control_of(group)); });
  }
  bool is_shm() const { return GetParam() == std::string("shm"); }
};

INSTANTIATE_TEST_SUITE_P(Backends, ControlTest, ::testing::Values("shm", "gloo", "hybrid"),
                         [](const auto& suite) { return suite.param; });

struct Point {
  int32_t x = 0;
  double y = 0;
};

TEST_P(ControlTest, CarriesValuesListsTextsAndFlags) {
  run(3, [](ProcessGroup& group, comm::Control& control) {
    const int rank = group.rank();
    for (int round = 0; round < 20; ++round) {
      const auto points = control.gather("points", Point{rank, 0.5 * round});
      const auto texts = control.gather_texts("texts", std::string(rank * 1000, 'a'));
      ASSERT_EQ(points.size(), 3u);
      for (int other = 0; other < 3; ++other) {
        EXPECT_EQ(points[other].x, other);
        EXPECT_EQ(points[other].y, 0.5 * round);
        EXPECT_EQ(texts[other], std::string(other * 1000, 'a'));
      }
    }
    // Empty, of one call, and of many; as long on each rank as it likes.
    for (const int64_t length : {0, 1, 55, 56, 57, 1000, 50'000}) {
      std::vector<int64_t> mine(length * (rank + 1));
      for (size_t i = 0; i < mine.size(); ++i) mine[i] = static_cast<int64_t>(i) * (rank + 1);
      const auto all = control.gather_lists("lists", mine);
      for (int other = 0; other < 3; ++other) {
        ASSERT_EQ(all[other].size(), static_cast<size_t>(length * (other + 1)));
        for (size_t i = 0; i < all[other].size(); ++i) {
          ASSERT_EQ(all[other][i], static_cast<int64_t>(i) * (other + 1));
        }
      }
      EXPECT_EQ(control.list_of_root("list of root", mine, 2), all[2]);
    }
    EXPECT_EQ(control.of_root("value of root", 10 * rank, 1), 10);
    EXPECT_EQ(control.text_of_root("text of root", std::to_string(rank), 2), "2");
    EXPECT_EQ(control.any("flags", {rank == 0, false, rank == 2}), (std::vector<bool>{true, false, true}));
  });
}

TEST_P(ControlTest, DoesNotDisturbDataUnderWay) {
  run(2, [](ProcessGroup& group, comm::Control& control) {
    for (int round = 0; round < 10; ++round) {
      const auto tensor = at::full({100'000}, group.rank() + round, at::kFloat);
      auto work = group.all_reduce_async(tensor);
      EXPECT_EQ(control.gather("ranks", group.rank()), (std::vector<int>{0, 1}));
      work.wait();
      EXPECT_TRUE(at::equal(tensor, at::full({100'000}, 1 + 2 * round, at::kFloat)));
    }
  });
}

// More calls under way than the segment has slots for: the late ones have been made, though nobody sees them.
TEST_P(ControlTest, ManyDataCallsUnderWayAreNoMismatch) {
  run(2, [](ProcessGroup& group, comm::Control& control) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 40; ++i) {
      tensors.push_back(at::ones({1000}));
      works.push_back(group.all_reduce_async(tensors.back()));
    }
    if (group.rank() == 0) std::this_thread::sleep_for(100ms);
    control.gather("in between", 1);
    for (auto& work : works) work.wait();
    EXPECT_EQ(tensors.back()[0].item<float>(), 2);
  });
}

TEST_P(ControlTest, DifferentExchangesAreAMismatch) {
  run(2, [](ProcessGroup& group, comm::Control& control) {
    const char* const mine = group.rank() == 0 ? "apples" : "pears";
    const auto message = message_of<MismatchError>([&] { control.gather(mine, 1); });
    EXPECT_THAT(message, AllOf(HasSubstr("apples"), HasSubstr("pears")));
    // The group has ended with it.
    EXPECT_EQ(message_of<MismatchError>([&] { group.barrier(); }), message);
  });
}

TEST_P(ControlTest, AnExchangeHereAndACollectiveThereAreAMismatch) {
  run(3, [](ProcessGroup& group, comm::Control& control) {
    const auto message = message_of<MismatchError>([&] {
      if (group.rank() == 1) {
        group.all_reduce(at::ones({1000}));
      } else {
        control.gather("a vote", 1);
      }
    });
    EXPECT_THAT(message, AllOf(HasSubstr("a vote"), HasSubstr("all_reduce of 1000 Float, Sum")));
  });
}

// The data transport cannot carry the news of its own failure.
TEST_P(ControlTest, RanksCanTalkWhenTheDataTransportHasFailed) {
  run(3, [](ProcessGroup& group, comm::Control&) {
    if (group.rank() == 2) group.poison(Error("out of order"));
    EXPECT_THAT(message_of<Error>([&] { group.all_reduce(at::ones({10})); }), HasSubstr("out of order"));
    EXPECT_THAT(message_of<Error>([&] { comm::control_of(group); }), HasSubstr("out of order"));
    auto& control = *comm::generation_of(group)->control;
    // Rank 0 hosts the store and must not leave before this rank has read.
    if (group.rank() == 1) std::this_thread::sleep_for(200ms);
    EXPECT_EQ(control.gather("after the failure", group.rank()), (std::vector<int>{0, 1, 2}));
  });
}

TEST_P(ControlTest, ARankThatEndsIsNamed) {
  const auto outcomes = start_ranks(
      3,
      [&](int rank) {
        const auto group = init_process_group({.backend = GetParam(), .timeout = 30s});
        group->barrier();
        if (rank == 1) ::_exit(3);
        const auto message = message_of<PeerLostError>([&] { comm::control_of(*group).gather("a vote", 1); });
        EXPECT_THAT(message, AllOf(HasSubstr("a vote"), HasSubstr("rank 1")));
      },
      {.environment = environment_for(GetParam(), 3)});
  for (const int rank : {0, 2}) EXPECT_EQ(outcomes[rank].exit_status, 0) << outcomes[rank].describe();
}

TEST_P(ControlTest, ARankThatLeavesInGoodOrderIsNamed) {
  const auto outcomes = start_ranks(
      3,
      [&](int rank) {
        const auto group = init_process_group({.backend = GetParam(), .timeout = 30s});
        group->barrier();
        if (rank == 1) return;
        const auto message = message_of<PeerLostError>([&] { comm::control_of(*group).gather("a vote", 1); });
        EXPECT_THAT(message, AllOf(HasSubstr("a vote"), HasSubstr("rank 1")));
      },
      {.environment = environment_for(GetParam(), 3)});
  for (const int rank : {0, 1, 2}) EXPECT_EQ(outcomes[rank].exit_status, 0) << outcomes[rank].describe();
}

TEST_P(ControlTest, ARankThatStaysAwayIsNamed) {
  const auto outcomes = start_ranks(
      2,
      [&](int rank) {
        const auto group = init_process_group({.backend = GetParam(), .timeout = 2s});
        if (rank == 1) {
          std::this_thread::sleep_for(3s);
          return;
        }
        const auto message = message_of<TimeoutError>([&] { comm::control_of(*group).gather("a vote", 1); });
        EXPECT_THAT(message, AllOf(HasSubstr("a vote"), HasSubstr("rank 1")));
      },
      {.environment = environment_for(GetParam(), 2)});
  EXPECT_EQ(outcomes[0].exit_status, 0) << outcomes[0].describe();
}

}  // namespace
}  // namespace lockstep::testing
