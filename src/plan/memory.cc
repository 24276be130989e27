#include "plan/memory.h"

namespace lockstep::plan {

namespace {

constexpr double kLibraryBytes = 112 * kMiB;   // of a rank with a tiny model (bench/growth)
constexpr double kSegmentBytes = 4.25 * kMiB;  // docs/shm-layout.md, with the staging slots at their largest
constexpr double kConnectionBytes = 8192;      // an idle socket takes 4 KiB of the kernel; Gloo's own state
constexpr double kChunksUnderWay = 4 * kMiB;   // of the exchange between machines, in both directions

double states_of(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::Sgd:
      return 0;
    case Optimizer::Momentum:
      return 1;
    case Optimizer::Adam:
      return 2;
  }
  return 0;
}

}  // namespace

Memory memory_of(const Job& job) {
  Memory memory{.parameters_bytes = job.gradient_bytes(),
                .gradients_bytes = job.gradient_bytes(),
                .optimizer_bytes = states_of(job.optimizer) * job.gradient_bytes(),
                .library_bytes = kLibraryBytes};
  if (job.ranks_per_machine > 1) memory.staging_bytes += kSegmentBytes;
  if (job.machines > 1) {
    memory.staging_bytes += kChunksUnderWay;
    memory.connections_bytes = (job.ranks() - 1) * kConnectionBytes;
  }
  return memory;
}

}  // namespace lockstep::plan
