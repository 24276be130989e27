// A bucket on its way between the ranks, from launch to finish.
#pragma once

#include <optional>
#include <string>

#include <lockstep/comm_hook.h>

#include "reducer/bucket.h"
#include "reducer/sparse.h"

namespace lockstep::reducer {

class Flight {
 public:
  struct Terms {
    ProcessGroup& group;
    const Parameters& parameters;
    const CommHook& hook;  // empty: an all-reduce
    int participants;
    bool scaled;  // the sum of what travels is the average
    bool takes_part;
    size_t index;
    bool is_last;
  };
  // Does not wait for the other ranks, unless the hook does.
  Flight(Bucket& bucket, const Terms& terms);

  // Helps, if the backend needs help; true when finish() would not block.
  bool is_done() const;
  // Afterwards the bucket holds the averages; returns that of a sparse one, which has no memory.
  at::Tensor finish();

 private:
  bool averages() const;
  std::string purpose() const;

  Bucket& bucket_;
  const Terms terms_;
  Work work_;
  std::optional<CommResult> result_;
  std::optional<SparseExchange> sparse_;
};

}  // namespace lockstep::reducer
