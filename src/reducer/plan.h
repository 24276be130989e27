// Assigns parameters to buckets: a pure function of their sizes and order.
#pragma once

#include <cstddef>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace lockstep::reducer {

struct PlanItem {
  size_t bytes = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::Device device = c10::kCPU;
  bool sparse = false;
};

struct PlanCaps {
  size_t first = 0;  // of the first bucket of each dtype and device
  size_t others = 0;
  // Whether `others` may be reduced to what the transport needs (comm::Transport::bucket_bytes).
  bool follow_transport = false;
};

// Returns the buckets in the order in which they are launched, each as a list of items in the order in which
// they are expected.
//
// `order` contains every item once, in the order in which they become ready. A bucket contains one dtype and
// one device, and is closed when it has reached its cap. An item that is larger than the cap gets its own
// bucket, and so does a sparse one. Buckets are ordered by their last items, because a bucket can be launched
// when its last item is ready.
std::vector<std::vector<size_t>> make_plan(const std::vector<PlanItem>& items,
                                           const std::vector<size_t>& order, PlanCaps caps);

}  // namespace lockstep::reducer
