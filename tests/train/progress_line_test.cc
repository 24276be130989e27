// The text of a progress line: its contents and its width.
#include "train/progress_line.h"

#include <cmath>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using train::bar_line;
using train::plain_line;
using train::ProgressState;

ProgressState halfway() {
  return {.label = "epoch 1/3",
          .unit = "samples",
          .done = 42,
          .steps = 100,
          .samples = 84000,
          .elapsed = 21,
          .loss = 0.12345};
}

TEST(ProgressLine, TellsEverything) {
  EXPECT_EQ(plain_line(halfway()),
            "epoch 1/3   42%   42/100  loss 0.1235   4.00k samples/s   2.00 steps/s  ETA 0:29");
}

TEST(ProgressLine, TellsTheTimeItTookAtTheEnd) {
  auto state = halfway();
  state.finished = true;
  EXPECT_THAT(plain_line(state), EndsWith("in 0:21"));
}

TEST(ProgressLine, LeavesOutWhatIsNotKnown) {
  EXPECT_EQ(plain_line({}), "0 steps");
  EXPECT_EQ(plain_line({.done = 1, .elapsed = 2}), "1 step    0.5 steps/s");
  EXPECT_EQ(plain_line({.done = 0, .steps = 5}), "  0%  0/5");
  // No time has passed.
  EXPECT_EQ(plain_line({.done = 2, .steps = 4, .samples = 8}), " 50%  2/4  ETA 0:00");
}

TEST(ProgressLine, DrawsTheBarInTheRoomThatIsLeft) {
  const auto state = halfway();
  EXPECT_EQ(bar_line(state, 79, false),
            "epoch 1/3   42%  [====>-----]   42/100  loss 0.1235   4.00k samples/s  ETA 0:29");
  EXPECT_THAT(bar_line(state, 200, false), HasSubstr("[===============>----------------------]   42/100"));
  auto done = state;
  done.done = 100;
  EXPECT_THAT(bar_line(done, 200, false), HasSubstr("100%  [======================================]"));
}

TEST(ProgressLine, FitsEveryWidth) {
  auto huge = halfway();
  huge.done = huge.steps = std::numeric_limits<int64_t>::max();
  huge.samples = 1e300;
  huge.elapsed = 1e-9;
  huge.loss = -std::numeric_limits<double>::max();
  auto unknown = halfway();
  unknown.steps = 0;
  for (const auto& state : {halfway(), huge, unknown, ProgressState{}}) {
    for (int width = 0; width < 200; ++width) {
      EXPECT_LE(bar_line(state, width, false).size(), static_cast<size_t>(width))
          << bar_line(state, width, false);
    }
    EXPECT_THAT(bar_line(state, -1, false), IsEmpty());
  }
}

TEST(ProgressLine, KeepsWhatMattersWhereItIsNarrow) {
  EXPECT_EQ(bar_line(halfway(), 19, false), " 42%  loss 0.1235");
  EXPECT_EQ(bar_line(halfway(), 5, false), " 42%");
  EXPECT_EQ(bar_line(halfway(), 47, false), " 42%  [==>---]   42/100  loss 0.1235   ETA 0:29");
  EXPECT_EQ(bar_line(halfway(), 49, false), "epoch 1/3   42%   42/100  loss 0.1235   ETA 0:29");
}

TEST(ProgressLine, TakesWideCharactersForWideAndCutsNoneInHalf) {
  ProgressState state{.label = "日本語ですか", .done = 3};
  for (int width = 0; width < 40; ++width) {
    const auto line = bar_line(state, width, false);
    int columns = 0;
    for (const char c : line) {
      if ((c & 0xc0) != 0x80) columns += (c & 0x80) != 0 ? 2 : 1;
    }
    EXPECT_LE(columns, width);
    EXPECT_TRUE(line.empty() || static_cast<unsigned char>(line.back()) != 0xe6) << line;
  }
}

TEST(ProgressLine, PercentagesAreExactAndEndAtAHundred) {
  for (int64_t done = 0; done <= 100; ++done) {
    EXPECT_THAT(plain_line({.done = done, .steps = 100}),
                StartsWith(fmt::format("{:3}%  {:3}/100", done, done)));
  }
  EXPECT_THAT(plain_line({.done = 999, .steps = 1000}), StartsWith(" 99%"));
  EXPECT_THAT(
      bar_line({.done = 300, .steps = 100, .elapsed = 3}, 60, false),
      AllOf(StartsWith("100%  [====="), HasSubstr("300/100"), Not(HasSubstr("ETA")), Not(HasSubstr(">"))));
}

TEST(ProgressLine, ShowsALossThatIsNoNumber) {
  EXPECT_THAT(plain_line({.loss = std::nan("")}), HasSubstr("loss nan"));
  EXPECT_THAT(plain_line({.loss = -std::numeric_limits<double>::infinity()}), HasSubstr("loss -inf"));
}

TEST(ProgressLine, ShortensNumbers) {
  using train::short_number;
  EXPECT_EQ(short_number(0.01234), "0.0123");
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(0.9996), "1.00");
  EXPECT_EQ(short_number(1), "1.00");
  EXPECT_EQ(short_number(9.996), "10.0");
  EXPECT_EQ(short_number(99.96), "100");
  EXPECT_EQ(short_number(123.4), "123");
  EXPECT_EQ(short_number(999.4), "999");
  EXPECT_EQ(short_number(999.6), "1.00k");
  EXPECT_EQ(short_number(999'600), "1.00M");
  EXPECT_EQ(short_number(9.22e18), "9.22E");
  EXPECT_EQ(short_number(1e300), "1e+282E");
  EXPECT_EQ(short_number(std::nan("")), "?");
  EXPECT_EQ(short_number(std::numeric_limits<double>::infinity()), "?");
}

TEST(ProgressLine, WritesDurationsAsClocksDo) {
  using train::duration;
  EXPECT_EQ(duration(-1), "0:00");
  EXPECT_EQ(duration(7.4), "0:07");
  EXPECT_EQ(duration(59.6), "1:00");
  EXPECT_EQ(duration(754), "12:34");
  EXPECT_EQ(duration(5025), "1:23:45");
  EXPECT_EQ(duration(100 * 3600), "4d 04h");
  EXPECT_EQ(duration(1e300), "?");
  EXPECT_EQ(duration(std::nan("")), "?");
}

}  // namespace
}  // namespace lockstep::testing
