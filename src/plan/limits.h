// Where the design stops: what a job needs that does not grow without end. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "plan/job.h"
#include "plan/predict.h"

namespace lockstep::plan {

// What the start of a job reads from its one store, for Gloo's connections: each rank reads from every other
// rank a list of that rank's N - 1 addresses.
struct Rendezvous {
  double reads = 0;
  double bytes = 0;
  double link_s = 0;  // in which the link of the store's machine is busy, at least
};
Rendezvous rendezvous_of(const Job& job);

// Open files of a rank: connections, and the memory of the other ranks of its machine.
double descriptors_of(const Job& job);

struct Limit {
  std::string what, hint;
};
std::vector<Limit> limits_reached(const Job& job, const Prediction& prediction);

}  // namespace lockstep::plan
