// The memory in which the gradients of some parameters are reduced together; copies gradients in and averages
// out.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/process_group.h>

#include "comm/range.h"
#include "reducer/parameter.h"

namespace lockstep::reducer {

// One dtype, one device. Gradients are adjacent, each aligned and with its parameter's strides; the padding
// between them is zero. The views are separate tensors on the same storage, not views in autograd's sense,
// which optimizers could not detach.
class Bucket {
 public:
  // Allocates the group's memory, which is reduced without copying if the transport can, and fills it with
  // zeros. A sparse bucket has one member and no memory.
  Bucket(ProcessGroup& group, const Parameters& parameters, std::vector<size_t> members, bool sparse);

  // Moves the contents into memory of the group's current generation. Gradients that are stored here move
  // along.
  void move_to(ProcessGroup& group, const Parameters& parameters);
  // Forgets values(); the parameters stay where they are.
  void drop_values() { values_.reset(); }

  bool sparse() const { return sparse_; }
  const std::vector<size_t>& members() const { return members_; }  // indices of parameters
  at::Tensor& flat() { return flat_; }
  const at::Tensor& flat() const { return flat_; }
  const at::Tensor& view(size_t slot) const { return views_[slot]; }
  // Whether so many ranks can have equal parts of flat(), in whole units of its alignment.
  bool divides_among(int world_size) const;
  // The elements of a slot in flat(), without padding.
  comm::Range range(size_t slot) const;

  // Moves the parameters into memory of the group, where they lie as their gradients in flat(): values().
  // `copies`: of this rank's own, or common to the ranks of a machine, which then take the values of their
  // first one. Not for sparse buckets. The first time, with OnePerMachine, all ranks must call it, and it
  // blocks; later, it moves the parameters that the user has given other memory, and returns whether there
  // were any.
  enum class Copies { OnePerRank, OnePerMachine };
  bool gather_parameters(ProcessGroup& group, const Parameters& parameters, Copies copies);
  const at::Tensor& values() const { return values_; }  // undefined if they were never moved

  // `as_view`: .grad is the bucket's memory; otherwise they are separate, and bytes are copied. `factor`: the
  // gradient is multiplied by it when it is copied in.

  // Copies in what is to be reduced: the parameter's .grad, or zeros if it has none.
  void take_in(size_t slot, const at::Tensor& parameter, bool as_view, double factor);
  // Makes the average the parameter's .grad.
  void hand_out(size_t slot, const at::Tensor& parameter, bool as_view) const;

  // For a parameter that takes no part in the pass: copies its .grad in, but so that it can be restored.
  // Returns what restore() needs; undefined if .grad is not stored in the bucket.
  at::Tensor lend(size_t slot, const at::Tensor& parameter, double factor);
  void restore(size_t slot, const at::Tensor& lent);

 private:
  void allocate(ProcessGroup& group, const Parameters& parameters);
  // Whether this gradient is already stored in the slot.
  bool holds(size_t slot, const at::Tensor& gradient) const;

  // A tensor of this memory for each member, with its strides.
  std::vector<at::Tensor> views_of(const at::Tensor& flat, const Parameters& parameters) const;

  std::vector<size_t> members_;
  bool sparse_;
  at::Tensor flat_, values_;
  std::vector<at::Tensor> views_;
};

}  // namespace lockstep::reducer
