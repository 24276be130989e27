// The point in time at which a blocking call gives up. Passed by value, so that all steps of one call share
// one budget.
#pragma once

#include <algorithm>
#include <chrono>

namespace lockstep::base {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline in(std::chrono::milliseconds budget) { return Deadline(budget); }

  bool expired() const { return Clock::now() >= at_; }
  std::chrono::milliseconds budget() const { return budget_; }
  // Never negative. Rounded up, so that a wait of this length ends after the deadline and not just before it.
  std::chrono::milliseconds remaining() const {
    return std::max(std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now()),
                    std::chrono::milliseconds(0));
  }
  // The timeout for poll(2): the remaining time, at most `slice`.
  int poll_timeout(std::chrono::milliseconds slice = std::chrono::hours(1)) const {
    return static_cast<int>(std::min(remaining(), slice).count());
  }

 private:
  explicit Deadline(std::chrono::milliseconds budget) : budget_(budget), at_(Clock::now() + budget) {}

  std::chrono::milliseconds budget_;
  Clock::time_point at_;
};

}  // namespace lockstep::base
