// Conversion between the caller's tensors, which may have any strides, and dense tensors, which backends
// require: their bytes in memory are their elements in order.
#pragma once

#include <ATen/ATen.h>

namespace lockstep::comm {

// A lazy conjugate or negation is contiguous, but its bytes are those of the original tensor.
inline bool is_dense(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// The tensor itself, without its autograd history, or a dense copy.
inline at::Tensor dense_of(const at::Tensor& tensor) {
  const auto bare = tensor.detach();
  return is_dense(bare) ? bare : bare.resolve_conj().resolve_neg().contiguous();
}

// Where results are written: the tensor itself, or memory from which bring_home() copies them to it.
inline at::Tensor landing_place(const at::Tensor& target) {
  const auto bare = target.detach();
  return is_dense(bare) ? bare
                        : at::empty(bare.sizes(), bare.options().memory_format(at::MemoryFormat::Contiguous));
}

// Whether contiguous tensors share bytes.
inline bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto* a_begin = static_cast<const char*>(a.data_ptr());
  const auto* b_begin = static_cast<const char*>(b.data_ptr());
  return a_begin < b_begin + b.nbytes() && b_begin < a_begin + a.nbytes();
}

// Whether `part` overlaps `whole` anywhere else than at part number `index`.
inline bool overlap_askew(const at::Tensor& whole, const at::Tensor& part, int index) {
  return overlap(whole, part) && static_cast<const char*>(whole.data_ptr()) + index * part.nbytes() !=
                                     static_cast<const char*>(part.data_ptr());
}

// Copies results to the target, unless they were written there in the first place.
inline void bring_home(const at::Tensor& target, const at::Tensor& landed) {
  if (target.data_ptr() != landed.data_ptr()) target.detach().copy_(landed.view(target.sizes()));
}

}  // namespace lockstep::comm
