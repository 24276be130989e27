// What the stats say about time, with a clock that the test holds.
#include "reducer/timeline.h"

#include <gtest/gtest.h>
#include <optional>

namespace lockstep::reducer {
namespace {

using std::chrono::milliseconds;

constexpr double kMs = 1e-3;
constexpr double kExact = 1e-12;  // but for rounding

class TimelineTest : public ::testing::Test {
 protected:
  // The clock does not begin at zero: all times are counted from the beginning of the pass.
  TimelineTest() { clock_ = Timeline::Clock::time_point(milliseconds(7000)); }

  static Timeline::Clock::time_point now() { return clock_; }
  static void pass_ms(int time) { clock_ += milliseconds(time); }

  void exposed_ms(int time) {
    const Timeline::Exposed exposed(timeline_);
    pass_ms(time);
  }
  // A bucket whose gradients are there, and which is launched, right now.
  void launch(size_t bucket) {
    timeline_.ready(bucket);
    timeline_.launched(bucket);
  }
  const DdpStats& stats() const { return timeline_.stats(); }

  Timeline timeline_{&now};

 private:
  inline static Timeline::Clock::time_point clock_;
};

TEST_F(TimelineTest, NothingIsKnownBeforeAPassHasEnded) {
  EXPECT_EQ(stats().steps, 0);
  EXPECT_TRUE(stats().buckets.empty());
  timeline_.begin(1);
  launch(0);
  pass_ms(5);
  timeline_.finished(0);
  EXPECT_EQ(stats().steps, 0);
  EXPECT_TRUE(stats().buckets.empty());
  EXPECT_EQ(stats().communication, 0);
}

TEST_F(TimelineTest, BucketsHaveTheirTimesFromTheBeginning) {
  timeline_.begin(2);
  pass_ms(3);
  timeline_.ready(1);
  pass_ms(2);
  timeline_.ready(0);
  pass_ms(1);
  timeline_.launched(0);
  pass_ms(1);
  timeline_.launched(1);
  pass_ms(3);
  timeline_.finished(0);
  pass_ms(4);
  timeline_.finished(1);
  pass_ms(6);
  timeline_.end();
  ASSERT_EQ(stats().buckets.size(), 2U);
  EXPECT_NEAR(stats().buckets[0].ready, 5 * kMs, kExact);
  EXPECT_NEAR(stats().buckets[0].launched, 6 * kMs, kExact);
  EXPECT_NEAR(stats().buckets[0].finished, 10 * kMs, kExact);
  EXPECT_NEAR(stats().buckets[1].ready, 3 * kMs, kExact);
  EXPECT_NEAR(stats().buckets[1].launched, 7 * kMs, kExact);
  EXPECT_NEAR(stats().buckets[1].finished, 14 * kMs, kExact);
  EXPECT_NEAR(stats().backward, 20 * kMs, kExact);
  // What the buckets hold is not told here.
  EXPECT_EQ(stats().buckets[0].bytes, 0);
  EXPECT_EQ(stats().bytes, 0);
}

// Those who wait for a bucket that was seen to be finished report it again.
TEST_F(TimelineTest, TheFirstReportOfItsEndCounts) {
  timeline_.begin(1);
  launch(0);
  pass_ms(4);
  timeline_.finished(0);
  pass_ms(10);
  timeline_.finished(0);
  timeline_.finished(0, now());
  pass_ms(10);
  timeline_.end();
  EXPECT_NEAR(stats().buckets[0].finished, 4 * kMs, kExact);
  EXPECT_NEAR(stats().communication, 4 * kMs, kExact);
}

// A transport with a thread of its own knows better than whoever asks later.
TEST_F(TimelineTest, AnEndMayBeReportedLater) {
  timeline_.begin(1);
  launch(0);
  pass_ms(4);
  const auto ended = now();
  pass_ms(10);
  timeline_.finished(0, ended);
  timeline_.end();
  EXPECT_NEAR(stats().buckets[0].finished, 4 * kMs, kExact);
  EXPECT_NEAR(stats().communication, 4 * kMs, kExact);
}

TEST_F(TimelineTest, NoBucketEndsBeforeItsLaunch) {
  timeline_.begin(1);
  pass_ms(2);
  const auto before = now();
  pass_ms(3);
  launch(0);
  timeline_.finished(0, before);
  timeline_.end();
  EXPECT_NEAR(stats().buckets[0].finished, 5 * kMs, kExact);
  EXPECT_EQ(stats().communication, 0);
}

TEST_F(TimelineTest, SpansThatOverlapCountOnce) {
  timeline_.begin(3);
  launch(0);
  pass_ms(2);
  launch(1);
  pass_ms(2);
  launch(2);
  pass_ms(1);
  timeline_.finished(1);  // within the others
  pass_ms(3);
  timeline_.finished(0);
  pass_ms(4);
  timeline_.finished(2);
  pass_ms(5);
  timeline_.end();
  EXPECT_NEAR(stats().communication, 12 * kMs, kExact);
  EXPECT_NEAR(stats().backward, 17 * kMs, kExact);
}

TEST_F(TimelineTest, ASpanWithinAnotherAddsNothing) {
  timeline_.begin(2);
  launch(0);
  pass_ms(1);
  launch(1);
  pass_ms(1);
  timeline_.finished(1);
  pass_ms(8);
  timeline_.finished(0);
  timeline_.end();
  EXPECT_NEAR(stats().communication, 10 * kMs, kExact);
}

TEST_F(TimelineTest, BetweenTheEndOfOneAndTheLaunchOfTheNextNothingIsUnderWay) {
  timeline_.begin(2);
  pass_ms(1);
  launch(0);
  pass_ms(3);
  timeline_.finished(0);
  pass_ms(20);
  launch(1);
  pass_ms(5);
  timeline_.finished(1);
  timeline_.end();
  EXPECT_NEAR(stats().communication, 8 * kMs, kExact);
  EXPECT_NEAR(stats().backward, 29 * kMs, kExact);
}

TEST_F(TimelineTest, OnlyWhatSomebodyWaitsForIsExposed) {
  timeline_.begin(2);
  launch(0);
  pass_ms(6);  // computes
  exposed_ms(1);
  launch(1);
  pass_ms(2);
  timeline_.finished(0);
  exposed_ms(3);
  timeline_.finished(1);
  pass_ms(4);
  timeline_.end();
  EXPECT_NEAR(stats().communication, 12 * kMs, kExact);
  EXPECT_NEAR(stats().exposed, 4 * kMs, kExact);
  EXPECT_NEAR(stats().overlap, 8 * kMs, kExact);
}

TEST_F(TimelineTest, WithoutWaitingAllOfItOverlaps) {
  timeline_.begin(1);
  launch(0);
  pass_ms(6);
  timeline_.finished(0);
  timeline_.end();
  EXPECT_EQ(stats().exposed, 0);
  EXPECT_NEAR(stats().overlap, 6 * kMs, kExact);
}

// Work for the exchange while no bucket is under way: handing out averages.
TEST_F(TimelineTest, NoMoreIsExposedThanWasCommunicated) {
  timeline_.begin(1);
  {
    const Timeline::Exposed exposed(timeline_);
    pass_ms(1);
    launch(0);
    pass_ms(5);
    timeline_.finished(0);
    pass_ms(30);
  }
  timeline_.end();
  EXPECT_NEAR(stats().communication, 5 * kMs, kExact);
  EXPECT_NEAR(stats().exposed, 5 * kMs, kExact);
  EXPECT_NEAR(stats().overlap, 0, kExact);
}

// The time counts when the scope ends, and for the pass that is under way then.
TEST_F(TimelineTest, AScopeCountsWhenItEnds) {
  timeline_.begin(1);
  launch(0);
  std::optional<Timeline::Exposed> exposed(std::in_place, timeline_);
  pass_ms(5);
  timeline_.finished(0);
  timeline_.end();
  EXPECT_EQ(stats().exposed, 0);
  exposed.reset();
  timeline_.begin(1);
  launch(0);
  pass_ms(5);
  timeline_.finished(0);
  timeline_.end();
  EXPECT_EQ(stats().exposed, 0);
}

TEST_F(TimelineTest, TotalsAreOfAllPassesTheRestIsOfTheLast) {
  for (int pass = 1; pass <= 3; ++pass) {
    timeline_.begin(static_cast<size_t>(pass));
    for (int bucket = 0; bucket < pass; ++bucket) {
      launch(static_cast<size_t>(bucket));
      pass_ms(10);
      exposed_ms(1);
      timeline_.finished(static_cast<size_t>(bucket));
    }
    timeline_.end();
    EXPECT_EQ(stats().steps, pass);
    EXPECT_EQ(stats().buckets.size(), static_cast<size_t>(pass));
    EXPECT_NEAR(stats().communication, pass * 11 * kMs, kExact);
    EXPECT_NEAR(stats().exposed, pass * kMs, kExact);
    pass_ms(100);  // between passes
  }
  EXPECT_NEAR(stats().total_communication, 66 * kMs, kExact);
  EXPECT_NEAR(stats().total_exposed, 6 * kMs, kExact);
  EXPECT_NEAR(stats().backward, 33 * kMs, kExact);
}

// Every pass has marks of its own; those of a pass that was dropped are gone.
TEST_F(TimelineTest, APassThatWasDroppedLeavesNothing) {
  timeline_.begin(2);
  launch(0);
  exposed_ms(50);
  timeline_.finished(0);

  timeline_.begin(2);
  pass_ms(1);
  launch(0);
  launch(1);
  pass_ms(2);
  timeline_.finished(0);
  timeline_.finished(1);
  timeline_.end();
  EXPECT_EQ(stats().steps, 1);
  EXPECT_NEAR(stats().buckets[0].finished, 3 * kMs, kExact);
  EXPECT_NEAR(stats().communication, 2 * kMs, kExact);
  EXPECT_EQ(stats().exposed, 0);
  EXPECT_NEAR(stats().total_communication, 2 * kMs, kExact);
}

TEST_F(TimelineTest, OfNoBucketsHasAnEndToo) {
  timeline_.begin(0);
  pass_ms(3);
  exposed_ms(2);
  timeline_.end();
  EXPECT_EQ(stats().steps, 1);
  EXPECT_TRUE(stats().buckets.empty());
  EXPECT_NEAR(stats().backward, 5 * kMs, kExact);
  EXPECT_EQ(stats().communication, 0);
  EXPECT_EQ(stats().exposed, 0);
}

}  // namespace
}  // namespace lockstep::reducer
