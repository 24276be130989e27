// A training job, as far as the model of its speed and memory needs to know it. SI units: seconds, bytes.
#pragma once

#include <algorithm>

namespace lockstep::plan {

inline constexpr double kMiB = 0x1p20;

enum class Optimizer { Sgd, Momentum, Adam };

struct Job {
  // The model.
  double parameters = 0;
  double element_bytes = 4;  // of a parameter, its gradient and the optimizer's state: 4 (float) or 2 (bf16)
  int tensors = 0;           // of equal size; 0: so many that each is small
  Optimizer optimizer = Optimizer::Adam;

  // A step of one rank that does not communicate (under no_sync).
  double step_s = 0;
  double backward_share = 2.0 / 3;  // of the step, spent in the backward pass

  // The machines. All are equal, and each has one link.
  int machines = 1;
  int ranks_per_machine = 1;
  double cores_per_machine = 0;        // 0: one for each rank
  double spare_cores_per_machine = 0;  // of these, how many the training itself leaves idle
  double link_bits_per_s = 0;          // in each direction
  double rtt_s = 0;

  // The averaging.
  double bucket_bytes = 0;  // of gradients; DdpOptions::bucket_cap_mb; 0: its default (bucket_bytes_of)
  double first_bucket_bytes = 1 * kMiB;  // DdpOptions::first_bucket_mb
  double wire_element_bytes = 0;  // what a communication hook sends for each gradient; 0: the gradient itself

  int ranks() const { return machines * ranks_per_machine; }
  double gradient_bytes() const { return parameters * element_bytes; }
  bool compressed() const { return wire_element_bytes > 0 && wire_element_bytes < element_bytes; }
  double cores() const { return cores_per_machine > 0 ? cores_per_machine : ranks_per_machine; }
  // How many ranks share a core.
  double ranks_per_core() const { return std::max(1.0, ranks_per_machine / cores()); }
  // The part of the communication's CPU time that is taken from computing: 1 if the training uses all cores.
  double contention() const { return std::clamp(1 - spare_cores_per_machine / ranks_per_machine, 0.0, 1.0); }
};

}  // namespace lockstep::plan
