#include "reducer/gradients.h"

#include <ATen/ATen.h>

namespace lockstep::reducer {

namespace {

void copy_scaled(at::Tensor view, const at::Tensor& gradient, double scale) {
  if (scale == 1) {
    view.copy_(gradient);
  } else {
    at::mul_out(view, gradient, at::scalar_tensor(scale, gradient.options()));
  }
}

}  // namespace

void take_in(Bucket& bucket, size_t slot, const at::Tensor& parameter, bool as_view, double scale) {
  if (bucket.sparse()) return;
  auto& gradient = parameter.mutable_grad();
  const auto& view = bucket.view(slot);
  if (!gradient.defined()) {
    view.zero_();
    return;
  }
  if (bucket.holds(slot, gradient)) {
    if (scale != 1) gradient.mul_(scale);
    return;
  }
  copy_scaled(view, gradient, scale);
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

Bystander::Bystander(Bucket& bucket, size_t slot, const at::Tensor& parameter, double scale) {
  if (bucket.sparse()) return;
  const auto& gradient = parameter.grad();
  const auto& view = bucket.view(slot);
  if (!gradient.defined()) {
    view.zero_();
  } else if (bucket.holds(slot, gradient)) {
    saved_ = gradient.clone();
    copy_scaled(view, saved_, scale);
  } else {
    copy_scaled(view, gradient, scale);
  }
}

void Bystander::put_back(Bucket& bucket, size_t slot) const {
  if (saved_.defined()) bucket.view(slot).copy_(saved_);
}

}  // namespace lockstep::reducer
