// An optimizer that takes the gradients of a pass from their buckets: they are reduced when it updates the
// parameters, in one pass over memory (comm/update.h), or have been reduced by then.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/range.h"
#include "comm/update.h"

namespace lockstep::reducer {

// Which gradients a backward pass leaves in the buckets.
enum class Hold {
  Nothing,   // averages, which become .grad; there is no such optimizer
  Own,       // this rank's own
  Averages,  // averages, which also are .grad
};

// A bucket whose parameters it updates: of dense floats, or narrower numbers, on the CPU.
struct Held {
  struct Slot {
    size_t parameter;  // index in the reducer's parameters
    comm::Range range;
    bool used;  // on some rank in the last pass; others are left as they are
  };
  at::Tensor values;              // the parameters, at the places of their gradients
  bool common;                    // one copy for all ranks of this machine
  bool replaced;                  // since the last update, the user has given parameters other memory
  std::vector<Slot> slots;        // ascending
  std::vector<comm::Range> mine;  // what this rank updates
};

class Updater {
 public:
  // The buckets are other ones than in the update before: all of them, in the order of the updates.
  virtual void laid_out(const std::vector<Held>& buckets) = 0;
  // Before the update of a bucket; `used` may have changed. Returns what its averages are transformed by.
  virtual comm::Transform& transform(size_t index, const Held& bucket) = 0;

 protected:
  ~Updater() = default;
};

}  // namespace lockstep::reducer
