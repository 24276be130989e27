// Who supplies the bytes of gradient buckets: the backend, where it can reduce them with no copy, or the
// heap.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::comm {

class BucketMemory {
 public:
  virtual ~BucketMemory() = default;
  // Uninitialised, contiguous. Lives as long as the tensor, whatever becomes of the group.
  virtual at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) = 0;
};

}  // namespace lockstep::comm
