// When each bucket was ready, launched and finished, and what of that could not be hidden.
#pragma once

#include <chrono>
#include <vector>

#include <lockstep/ddp_stats.h>

namespace lockstep::reducer {

class Timeline {
 public:
  void begin(size_t buckets);
  void ready(size_t bucket) { marks_[bucket].ready = now(); }
  void launched(size_t bucket) { marks_[bucket].launched = now(); }
  void finished(size_t bucket) { marks_[bucket].finished = now(); }
  void end();

  // While one lives, this rank does nothing but communicate.
  class Exposed {
   public:
    explicit Exposed(Timeline& timeline) : timeline_(timeline), since_(timeline.now()) {}
    ~Exposed() { timeline_.exposed_ += timeline_.now() - since_; }
    Exposed(const Exposed&) = delete;
    Exposed& operator=(const Exposed&) = delete;

   private:
    Timeline& timeline_;
    double since_;
  };

  // A line about the last pass, for LOCKSTEP_LOG=debug.
  void log() const;
  // Fills in everything but what the buckets hold.
  void report(DdpStats& stats) const;

 private:
  struct Marks {
    double ready = 0, launched = 0, finished = 0;
  };
  double now() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  std::chrono::steady_clock::time_point start_;
  std::vector<Marks> marks_;
  double exposed_ = 0;
  DdpStats done_;  // of passes that have ended
};

}  // namespace lockstep::reducer
