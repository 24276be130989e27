// When each bucket was ready, launched and finished, and how much of that was not hidden behind computation.
#pragma once

#include <chrono>
#include <vector>

#include <lockstep/ddp_stats.h>

namespace lockstep::reducer {

class Timeline {
 public:
  using Clock = std::chrono::steady_clock;
  using Now = Clock::time_point (*)();
  // `now`: the clock; tests pass their own.
  explicit Timeline(Now now = &Clock::now) : now_(now) {}

  void begin(size_t buckets);
  void ready(size_t bucket) { marks_[bucket].ready = seconds(now_()); }
  void launched(size_t bucket) { marks_[bucket].launched = seconds(now_()); }
  // Only the first report is used.
  void finished(size_t bucket, Clock::time_point when);
  void finished(size_t bucket) { finished(bucket, now_()); }
  void end();

  // While it exists, this rank communicates instead of computing: it waits, or works for the exchange.
  class Exposed {
   public:
    explicit Exposed(Timeline& timeline) : timeline_(timeline), since_(timeline.now_()) {}
    ~Exposed() { timeline_.exposed_ += std::chrono::duration<double>(timeline_.now_() - since_).count(); }
    Exposed(const Exposed&) = delete;
    Exposed& operator=(const Exposed&) = delete;

   private:
    Timeline& timeline_;
    Clock::time_point since_;
  };

  // Logs one line about the last pass, for LOCKSTEP_LOG=debug.
  void log() const;
  // Statistics of the passes that have ended, without the contents of the buckets.
  const DdpStats& stats() const { return stats_; }

 private:
  struct Marks {
    double ready = 0, launched = 0, finished = -1;
  };
  double seconds(Clock::time_point when) const {
    return std::chrono::duration<double>(when - start_).count();
  }

  const Now now_;
  Clock::time_point start_;
  std::vector<Marks> marks_;
  double exposed_ = 0;
  DdpStats stats_;
};

}  // namespace lockstep::reducer
