// Brings gradients into their bucket and back.
//
// `as_view`: the bucket's memory is the gradient; otherwise they are two, and bytes are copied.
// `scale`: what travels is the gradient times it, for one pass over the memory less than scaling it there.
#pragma once

#include <ATen/core/Tensor.h>

#include "reducer/bucket.h"

namespace lockstep::reducer {

// This rank's gradient of the parameter in `slot` is what travels: its .grad, or zeros if it has none.
void take_in(Bucket& bucket, size_t slot, const at::Tensor& parameter, bool as_view, double scale);
// The average is there: it becomes the parameter's .grad.
void hand_out(Bucket& bucket, size_t slot, const at::Tensor& parameter, bool as_view);

// For a parameter that has taken no part in the pass: travels as take_in() says, but can be put back.
class Bystander {
 public:
  Bystander(Bucket& bucket, size_t slot, const at::Tensor& parameter, double scale);
  // .grad is again what it was.
  void put_back(Bucket& bucket, size_t slot) const;

 private:
  at::Tensor saved_;  // if .grad lives in the bucket
};

}  // namespace lockstep::reducer
