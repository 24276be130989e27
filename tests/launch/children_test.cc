#include "launch/children.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace lockstep::launch {
namespace {

// Pids that no process has: they are beyond the kernel's largest.
constexpr pid_t kFirst = (1 << 22) + 1;
constexpr pid_t kSecond = kFirst + 1;
constexpr pid_t kStranger = kFirst + 2;

TEST(Children, RemoveReturnsTheEndWithItsNote) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  base::Fd reading(ends[0]);
  const base::Fd writing(ends[1]);
  const auto bytes = base::encode_note({"UsageError", "no such batch"});
  ASSERT_EQ(::write(writing.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));

  Children children;
  children.add({.rank = 5, .local_rank = 1, .pid = kFirst, .note = std::move(reading)});
  children.add({.rank = 4, .local_rank = 0, .pid = kSecond});
  EXPECT_EQ(children.running_ranks(), (std::vector<int>{4, 5}));
  EXPECT_FALSE(children.remove(kStranger, 0));

  const auto end = children.remove(kFirst, as_wait_status(7));
  ASSERT_TRUE(end);
  EXPECT_EQ(*end, (RankEnd{.rank = 5,
                           .local_rank = 1,
                           .pid = kFirst,
                           .wait_status = as_wait_status(7),
                           .note = base::Note{"UsageError", "no such batch"}}));
  EXPECT_EQ(children.running_ranks(), std::vector<int>{4});
  EXPECT_FALSE(children.remove(kFirst, 0));

  const auto silent = children.remove(kSecond, 0);
  ASSERT_TRUE(silent);
  EXPECT_FALSE(silent->note);
  EXPECT_TRUE(children.empty());
}

}  // namespace
}  // namespace lockstep::launch
