// The memory in which the gradients of some parameters travel together.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/process_group.h>

#include "reducer/parameter.h"

namespace lockstep::reducer {

// One dtype, one device. Gradients lie one behind the other, each aligned and with its parameter's strides;
// what is between them is zero. The views are tensors of their own on the same storage, not views in
// autograd's sense, which optimizers could not detach.
class Bucket {
 public:
  // The memory is the group's, so that it travels without a copy where the backend can. All zeros. A sparse
  // bucket has one member and no memory.
  Bucket(ProcessGroup& group, const Parameters& parameters, std::vector<size_t> members, bool sparse);

  bool sparse() const { return sparse_; }
  const std::vector<size_t>& members() const { return members_; }  // indices of parameters
  at::Tensor& flat() { return flat_; }
  const at::Tensor& flat() const { return flat_; }
  const at::Tensor& view(size_t slot) const { return views_[slot]; }

  // Whether this gradient is the slot's memory already.
  bool holds(size_t slot, const at::Tensor& gradient) const;

 private:
  std::vector<size_t> members_;
  bool sparse_;
  at::Tensor flat_;
  std::vector<at::Tensor> views_;
};

}  // namespace lockstep::reducer
