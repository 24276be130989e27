// Simulates one step: the backward pass fills buckets, and their exchange overlaps with it. A pure function.
#pragma once

#include <vector>

#include "plan/exchange.h"

namespace lockstep::plan {

struct PlannedBucket {
  double bytes = 0;
  double ready_s = 0;  // of computing in the backward pass, until the bucket is full
};

// The buckets of the job in the order of their launch, as src/reducer/plan.cc makes them for equal tensors.
std::vector<PlannedBucket> buckets_of(Scheme scheme, const Job& job);

// In seconds from the beginning of the backward pass.
struct Exchanged {
  double begun_s = 0, ended_s = 0;
};
struct Overlap {
  double computed_s = 0;  // when the last gradient was ready
  double ended_s = 0;     // when it and all exchanges were done
  std::vector<Exchanged> buckets;
};

// Buckets are exchanged one after the other, each when it is ready and the one before it is done. One that
// has waited for that is at work already (Cost::queued).
//
// `contention` is the part of the exchanges' CPU time that computing loses. With 1, both want the same cores
// while the backward pass lasts, and each gets half of the time. With 0, each has cores of its own.
Overlap simulate(const std::vector<PlannedBucket>& buckets, const std::vector<Cost>& costs, double backward_s,
                 double contention);

}  // namespace lockstep::plan
