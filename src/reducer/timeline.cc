#include "reducer/timeline.h"

#include <algorithm>

#include "base/log.h"

namespace lockstep::reducer {

void Timeline::begin(size_t buckets) {
  start_ = std::chrono::steady_clock::now();
  marks_.assign(buckets, {});
  exposed_ = 0;
}

void Timeline::end() {
  done_.backward = now();
  // Buckets are launched one after the other, so what they cover has few holes; add up what it has.
  done_.communication = 0;
  double covered = 0;
  for (const auto& marks : marks_) {
    done_.communication += std::max(0.0, marks.finished - std::max(marks.launched, covered));
    covered = std::max(covered, marks.finished);
  }
  done_.exposed = std::min(exposed_, done_.communication);
  done_.overlap = done_.communication - done_.exposed;
  done_.total_communication += done_.communication;
  done_.total_exposed += done_.exposed;
  ++done_.steps;
  done_.buckets.clear();
  for (const auto& marks : marks_) {
    done_.buckets.push_back({.ready = marks.ready, .launched = marks.launched, .finished = marks.finished});
  }
}

void Timeline::log() const {
  base::log_debug(
      "step {}: backward {:.3f} ms, {} buckets, communication {:.3f} ms, of which exposed {:.3f} ms",
      done_.steps, 1e3 * done_.backward, done_.buckets.size(), 1e3 * done_.communication,
      1e3 * done_.exposed);
}

void Timeline::report(DdpStats& stats) const { stats = done_; }

}  // namespace lockstep::reducer
