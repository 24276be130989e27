// The memory that a rank needs for training. A pure function.
#pragma once

#include "plan/job.h"

namespace lockstep::plan {

// Without activations, temporary tensors and the data loader, which depend on the program.
struct Memory {
  double parameters_bytes = 0;
  double gradients_bytes = 0;  // once: they are stored in the buckets
  double optimizer_bytes = 0;
  double library_bytes = 0;      // LibTorch and lockstep themselves
  double staging_bytes = 0;      // the shared-memory segment, chunks on their way
  double connections_bytes = 0;  // to all other ranks

  double total_bytes() const {
    return parameters_bytes + gradients_bytes + optimizer_bytes + library_bytes + staging_bytes +
           connections_bytes;
  }
};

Memory memory_of(const Job& job);

}  // namespace lockstep::plan
