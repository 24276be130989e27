#include "reducer/timeline.h"

#include <algorithm>

#include "base/log.h"

namespace lockstep::reducer {

void Timeline::begin(size_t buckets) {
  start_ = now_();
  marks_.assign(buckets, {});
  exposed_ = 0;
}

void Timeline::finished(size_t bucket, Clock::time_point when) {
  auto& marks = marks_[bucket];
  if (marks.finished < 0) marks.finished = std::max(marks.launched, seconds(when));
}

void Timeline::end() {
  stats_.backward = seconds(now_());
  // The time during which at least one bucket was in progress. Buckets are launched in order, so one pass
  // over them computes the union of their intervals.
  stats_.communication = 0;
  double covered = 0;
  for (const auto& marks : marks_) {
    stats_.communication += std::max(0.0, marks.finished - std::max(marks.launched, covered));
    covered = std::max(covered, marks.finished);
  }
  stats_.exposed = std::min(exposed_, stats_.communication);
  stats_.overlap = stats_.communication - stats_.exposed;
  stats_.total_communication += stats_.communication;
  stats_.total_exposed += stats_.exposed;
  ++stats_.steps;
  stats_.buckets.clear();
  for (const auto& marks : marks_) {
    stats_.buckets.push_back({.ready = marks.ready, .launched = marks.launched, .finished = marks.finished});
  }
}

void Timeline::log() const {
  base::log_debug(
      "step {}: backward {:.3f} ms, {} buckets, communication {:.3f} ms, of which exposed {:.3f} ms",
      stats_.steps, 1e3 * stats_.backward, stats_.buckets.size(), 1e3 * stats_.communication,
      1e3 * stats_.exposed);
}

}  // namespace lockstep::reducer
