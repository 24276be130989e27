// What a backend of our own does beyond c10d's interface: memory, and blocking calls without the cost of a
// Work.
#pragma once

#include <lockstep/process_group.h>

#include "comm/bucket_memory.h"

namespace lockstep::comm {

// Tensors are checked and contiguous. What goes wrong is thrown as one of lockstep's errors.
class Native : public BucketMemory {
 public:
  virtual void all_reduce_now(const at::Tensor& tensor, ReduceOp op) = 0;
  virtual void broadcast_now(const at::Tensor& tensor, int root) = 0;
  virtual void all_gather_now(const at::Tensor& output, const at::Tensor& input) = 0;
  virtual void reduce_scatter_now(const at::Tensor& output, const at::Tensor& input, ReduceOp op) = 0;
  virtual void barrier_now() = 0;
  // Ends the group on all ranks with this error.
  virtual void fail(const std::string& kind, const std::string& text) = 0;
};

}  // namespace lockstep::comm
