// The memory in which the gradients of some parameters are reduced together, and their way in and out.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/process_group.h>

#include "reducer/parameter.h"

namespace lockstep::reducer {

// One dtype, one device. Gradients are adjacent, each aligned and with its parameter's strides; what is
// between them is zero. The views are tensors of their own on the same storage, not views in autograd's
// sense, which optimizers could not detach.
class Bucket {
 public:
  // Zeros, in the group's memory, which is reduced without a copy where the transport can. A sparse bucket
  // has one member and no memory.
  Bucket(ProcessGroup& group, const Parameters& parameters, std::vector<size_t> members, bool sparse);

  // Moves it into memory of the group as it is now. Gradients that live in it move along.
  void move_to(ProcessGroup& group, const Parameters& parameters);

  bool sparse() const { return sparse_; }
  const std::vector<size_t>& members() const { return members_; }  // indices of parameters
  at::Tensor& flat() { return flat_; }
  const at::Tensor& flat() const { return flat_; }
  const at::Tensor& view(size_t slot) const { return views_[slot]; }

  // `as_view`: the bucket's memory is the gradient; otherwise they are two, and bytes are copied.
  // `factor`: the gradient is multiplied by it on the way.

  // The parameter's .grad, or zeros if it has none, is what is reduced.
  void take_in(size_t slot, const at::Tensor& parameter, bool as_view, double factor);
  // The average becomes the parameter's .grad.
  void hand_out(size_t slot, const at::Tensor& parameter, bool as_view) const;

  // For a parameter that takes no part in the pass: is reduced as above, but can be restored. Returns what
  // restore() needs; undefined if .grad does not live in the bucket.
  at::Tensor lend(size_t slot, const at::Tensor& parameter, double factor);
  void restore(size_t slot, const at::Tensor& lent);

 private:
  void allocate(ProcessGroup& group, const Parameters& parameters);
  // Whether this gradient is the slot's memory already.
  bool holds(size_t slot, const at::Tensor& gradient) const;

  std::vector<size_t> members_;
  bool sparse_;
  at::Tensor flat_;
  std::vector<at::Tensor> views_;
};

}  // namespace lockstep::reducer
