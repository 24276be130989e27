// What averaging the gradients costs.
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
  // Of the last synchronised backward pass, in seconds from its first gradient.
  double ready = 0;     // all gradients were there
  double launched = 0;  // the exchange began
  double finished = 0;  // its results were here
};

struct DdpStats {
  int64_t steps = 0;  // synchronised backward passes
  std::vector<BucketStats> buckets;
  int64_t bytes = 0;  // of all buckets
  // Of the last synchronised backward pass, in seconds.
  double backward = 0;       // from the first gradient to the end
  double communication = 0;  // during which some bucket was under way
  double exposed = 0;        // in which this rank could not compute meanwhile
  double overlap = 0;        // the part of communication that was not exposed
  // Of all of them.
  double total_communication = 0, total_exposed = 0;
};

}  // namespace lockstep
