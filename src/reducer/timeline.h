// When each bucket was ready, launched and finished, and what of that could not be hidden behind computation.
#pragma once

#include <chrono>
#include <vector>

#include <lockstep/ddp_stats.h>

namespace lockstep::reducer {

class Timeline {
 public:
  using Clock = std::chrono::steady_clock;
  using Now = Clock::time_point (*)();
  // `now`: the clock; tests bring their own.
  explicit Timeline(Now now = &Clock::now) : now_(now) {}

  void begin(size_t buckets);
  void ready(size_t bucket) { marks_[bucket].ready = seconds(now_()); }
  void launched(size_t bucket) { marks_[bucket].launched = seconds(now_()); }
  // The first report counts.
  void finished(size_t bucket, Clock::time_point when);
  void finished(size_t bucket) { finished(bucket, now_()); }
  void end();

  // While one lives, this rank communicates and does not compute: it waits, or works for the exchange.
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

  // A line about the last pass, for LOCKSTEP_LOG=debug.
  void log() const;
  // Of the passes that have ended: everything but what the buckets hold.
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
