// The cost of averaging the gradients. For gradients on a CUDA device, these are times of the host, which
// only queues the work: they do not show how much of it the device hides behind computation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/cxx20.h>

namespace lockstep {

struct BucketStats {
  std::string dtype;
  int64_t bytes = 0;
  std::vector<std::string> parameters;
  // In the last synchronised backward pass, in seconds from its beginning.
  double ready = 0;     // all gradients were ready
  double launched = 0;  // the exchange was started
  double finished = 0;  // the result was available
};

struct DdpStats {
  int64_t steps = 0;  // synchronised backward passes
  std::vector<BucketStats> buckets;
  int64_t bytes = 0;  // of all buckets, in each pass
  // Durations in the last synchronised backward pass, in seconds.
  double backward = 0;       // from the beginning of the pass to its end
  double communication = 0;  // in which at least one bucket was in progress
  double exposed = 0;        // in which this rank communicated instead of computing
  double overlap = 0;        // communication - exposed: hidden behind computation
  // Sums over all synchronised backward passes.
  double total_communication = 0, total_exposed = 0;
};

}  // namespace lockstep
