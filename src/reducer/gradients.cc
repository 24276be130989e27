#include "reducer/gradients.h"

#include <ATen/ATen.h>

namespace lockstep::reducer {

void take_in(Bucket& bucket, size_t slot, const at::Tensor& parameter, bool as_view) {
  if (bucket.sparse()) return;
  auto& gradient = parameter.mutable_grad();
  const auto& view = bucket.view(slot);
  if (!gradient.defined()) {
    view.zero_();
    return;
  }
  if (bucket.holds(slot, gradient)) return;
  view.copy_(gradient);
  if (as_view) gradient = view.data();  // a tensor of its own on this memory: the user may do anything to it
}

void hand_out(Bucket& bucket, size_t slot, const at::Tensor& parameter, bool as_view) {
  if (bucket.sparse()) return;
  auto& gradient = parameter.mutable_grad();
  const auto& view = bucket.view(slot);
  if (as_view) {
    if (!gradient.defined() || !bucket.holds(slot, gradient)) gradient = view.data();
  } else if (gradient.defined()) {
    gradient.copy_(view);
  } else {
    gradient = view.clone();
  }
}

Bystander::Bystander(Bucket& bucket, size_t slot, const at::Tensor& parameter) {
  if (bucket.sparse()) return;
  const auto& gradient = parameter.grad();
  const auto& view = bucket.view(slot);
  if (!gradient.defined()) {
    view.zero_();
  } else if (bucket.holds(slot, gradient)) {
    saved_ = gradient.clone();
  } else {
    view.copy_(gradient);
  }
}

void Bystander::put_back(Bucket& bucket, size_t slot) const {
  if (saved_.defined()) bucket.view(slot).copy_(saved_);
}

}  // namespace lockstep::reducer
