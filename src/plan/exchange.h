// What the all-reduce of one bucket costs. Pure functions; docs/scaling.md explains the formulas.
#pragma once

#include "plan/constants.h"
#include "plan/job.h"

namespace lockstep::plan {

enum class Scheme {
  Hybrid,  // lockstep: shared memory within a machine, direct exchange between machines
  Ring,    // one ring of TCP connections over all ranks: PyTorch's Gloo
};

struct Cost {
  double latency_s = 0;  // nothing but waiting for the first bytes
  double link_s = 0;     // each direction of a machine's link is busy
  double core_s = 0;     // a core is busy for each rank that has it
  double memory_s = 0;   // the machine's memory is busy, at the same time as the cores
  double pieces = 1;     // while the link has one piece, the cores have the next one or the one before
  bool queued = false;  // the cores have its first piece while the link has the last one of the bucket before
  double link_bytes = 0;  // that a machine sends; it receives as many
  double messages = 0;    // that carry them
};

Cost cost_of(Scheme scheme, const Constants& constants, const Job& job, double bucket_bytes);

// The size of the job's buckets. The default depends on the transport.
double bucket_bytes_of(Scheme scheme, const Job& job);

// How long the bucket takes if the ranks get this share of their cores' time for it. `follows`: it was ready
// before the exchange of the bucket before was done.
double duration_s(const Cost& cost, double core_share, bool follows);

// What a link carries of TCP's data, by what it carries on the wire: Ethernet frames of 1500 bytes.
inline constexpr double kPayloadShare = 1448.0 / 1538;

}  // namespace lockstep::plan
