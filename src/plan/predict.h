// Predicts the step of a job, and compares it with other ways of running it. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "plan/constants.h"
#include "plan/exchange.h"
#include "plan/job.h"
#include "plan/memory.h"

namespace lockstep::plan {

struct Prediction {
  double step_s = 0;
  double exposed_s = 0;  // of the step: the job waits for the exchange, or works for it instead of computing
  double communication_s = 0;  // in which a bucket was exchanged
  double link_bytes = 0;       // sent by a machine in a step; it receives as many
  double message_bytes = 0;    // between machines, on average
  int buckets = 0;

  double efficiency() const { return step_s > 0 ? 1 - exposed_s / step_s : 1; }
};

Prediction predict(const Constants& constants, const Job& job, Scheme scheme = Scheme::Hybrid);

// The bucket size with the shortest step: the job's own unless another is better by more than kWorthwhile.
double best_bucket_bytes(const Constants& constants, const Job& job, Scheme scheme = Scheme::Hybrid);
inline constexpr double kWorthwhile = 0.01;

// How long the step would take if one kind of cost did not exist. Sorted: the first costs most.
struct Relief {
  std::string key;   // for programs
  std::string what;  // for people
  double step_s = 0;
};
std::vector<Relief> reliefs(const Constants& constants, const Job& job);

// Simulating more buckets than this takes seconds.
inline constexpr double kMostBuckets = 1e6;

}  // namespace lockstep::plan
