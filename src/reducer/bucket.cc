#include "reducer/bucket.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "comm/common_memory.h"
#include "comm/control.h"

namespace lockstep::reducer {

namespace {

// Gradients are aligned for vector instructions.
constexpr int64_t kAlignment = 64;
constexpr int64_t kSmallestBytes = int64_t{4} << 10;

int64_t padded(int64_t elements, int64_t element_bytes) {
  const int64_t unit = kAlignment / element_bytes;
  return (elements + unit - 1) / unit * unit;
}

// A tensor of this part of `memory`, with the sizes and strides of `like`.
at::Tensor view_of(const at::Tensor& memory, const comm::Range& part, const at::Tensor& like) {
  return at::empty({0}, memory.options())
      .set_(memory.storage(), memory.storage_offset() + part.from, like.sizes(), like.strides());
}

void copy_scaled(at::Tensor view, const at::Tensor& gradient, double factor) {
  if (factor == 1) {
    view.copy_(gradient);
  } else {
    // On the CPU: a scalar on a device would be a kernel of its own.
    at::mul_out(view, gradient, at::scalar_tensor(factor, gradient.options().device(at::kCPU)));
  }
}

}  // namespace

Bucket::Bucket(ProcessGroup& group, const Parameters& parameters, std::vector<size_t> members, bool sparse)
    : members_(std::move(members)), sparse_(sparse) {
  if (!sparse_) allocate(group, parameters);
}

void Bucket::allocate(ProcessGroup& group, const Parameters& parameters) {
  const auto options = parameters[members_.front()].tensor.options().requires_grad(false);
  const auto element_bytes = static_cast<int64_t>(options.dtype().itemsize());
  int64_t elements = 0;
  for (const auto index : members_) elements += padded(parameters[index].tensor.numel(), element_bytes);
  // Equal parts of it for all ranks are whole units.
  const int64_t unit = padded(1, element_bytes) * group.world_size();
  flat_ = group.empty({(elements + unit - 1) / unit * unit}, options);
  flat_.zero_();
  views_ = views_of(flat_, parameters);
}

std::vector<at::Tensor> Bucket::views_of(const at::Tensor& flat, const Parameters& parameters) const {
  std::vector<at::Tensor> views;
  int64_t offset = 0;
  for (const auto index : members_) {
    const auto& tensor = parameters[index].tensor;
    const auto like = tensor.is_non_overlapping_and_dense()
                          ? tensor.strides().vec()
                          : at::empty(tensor.sizes(), at::kMeta).strides().vec();
    views.push_back(at::empty({0}, flat.options())
                        .set_(flat.storage(), flat.storage_offset() + offset, tensor.sizes(), like));
    offset += padded(tensor.numel(), static_cast<int64_t>(flat.itemsize()));
  }
  return views;
}

bool Bucket::divides_among(int world_size) const {
  return flat_.numel() % (padded(1, static_cast<int64_t>(flat_.itemsize())) * world_size) == 0;
}

comm::Range Bucket::range(size_t slot) const {
  const auto& view = views_[slot];
  return {view.storage_offset() - flat_.storage_offset(), view.numel()};
}

bool Bucket::gather_parameters(ProcessGroup& group, const Parameters& parameters, Copies copies) {
  const auto is_there = [&](const at::Tensor& tensor, const at::Tensor& place) {
    return tensor.data_ptr() == place.data_ptr() && tensor.strides() == place.strides();
  };
  const at::NoGradGuard no_grad;
  const bool is_new = !values_.defined() || values_.numel() != flat_.numel();
  bool copies_values = true;
  if (is_new && copies == Copies::OnePerMachine) {
    auto [memory, first] = comm::allocate_common(group, flat_.numel(), flat_.scalar_type());
    values_ = std::move(memory);
    copies_values = first;
  } else if (is_new) {
    // Whole pages: other ranks write to them (shm/arena.cc).
    const auto elements = std::max(flat_.numel(), kSmallestBytes / static_cast<int64_t>(flat_.itemsize()));
    values_ = group.empty({elements}, flat_.options()).narrow(0, 0, flat_.numel());
    values_.zero_();
  }
  std::vector<at::Tensor> places;
  for (const auto& view : views_) places.push_back(view_of(values_, range(places.size()), view));
  std::vector<size_t> elsewhere;
  for (size_t slot = 0; slot < members_.size(); ++slot) {
    const auto& tensor = parameters[members_[slot]].tensor;
    if (is_there(tensor, places[slot])) continue;
    elsewhere.push_back(slot);
    if (copies_values) places[slot].copy_(tensor);
  }
  // The others take what the first one has copied.
  if (is_new && copies == Copies::OnePerMachine) {
    comm::control_of(group).gather<char>("parameters of a machine, in their place", 1);
  }
  for (const auto slot : elsewhere) {
    auto tensor = parameters[members_[slot]].tensor;
    tensor.set_data(places[slot]);
  }
  return !is_new && !elsewhere.empty();
}

void Bucket::move_to(ProcessGroup& group, const Parameters& parameters) {
  if (sparse_) return;
  const at::NoGradGuard no_grad;
  std::vector<size_t> held;
  for (size_t slot = 0; slot < members_.size(); ++slot) {
    const auto& gradient = parameters[members_[slot]].tensor.grad();
    if (gradient.defined() && holds(slot, gradient)) held.push_back(slot);
  }
  const auto before = flat_;
  allocate(group, parameters);
  const auto same = std::min(flat_.numel(), before.numel());
  flat_.narrow(0, 0, same).copy_(before.narrow(0, 0, same));
  for (const auto slot : held) parameters[members_[slot]].tensor.mutable_grad() = views_[slot].data();
}

bool Bucket::holds(size_t slot, const at::Tensor& gradient) const {
  const auto& view = views_[slot];
  return gradient.data_ptr() == view.data_ptr() && gradient.strides() == view.strides();
}

void Bucket::take_in(size_t slot, const at::Tensor& parameter, bool as_view, double factor) {
  if (sparse_) return;
  auto& gradient = parameter.mutable_grad();
  const auto& view = views_[slot];
  if (!gradient.defined()) {
    view.zero_();
    return;
  }
  if (holds(slot, gradient)) {
    if (factor != 1) gradient.mul_(factor);
    return;
  }
  copy_scaled(view, gradient, factor);
  if (as_view) gradient = view.data();  // a separate tensor on this memory: the user may modify it freely
}

void Bucket::hand_out(size_t slot, const at::Tensor& parameter, bool as_view) const {
  if (sparse_) return;
  auto& gradient = parameter.mutable_grad();
  const auto& view = views_[slot];
  if (as_view) {
    if (!gradient.defined() || !holds(slot, gradient)) gradient = view.data();
  } else if (gradient.defined()) {
    gradient.copy_(view);
  } else {
    gradient = view.clone();
  }
}

at::Tensor Bucket::lend(size_t slot, const at::Tensor& parameter, double factor) {
  if (sparse_) return {};
  const auto& gradient = parameter.grad();
  const auto& view = views_[slot];
  if (!gradient.defined()) {
    view.zero_();
    return {};
  }
  if (!holds(slot, gradient)) {
    copy_scaled(view, gradient, factor);
    return {};
  }
  auto lent = gradient.clone();
  copy_scaled(view, lent, factor);
  return lent;
}

void Bucket::restore(size_t slot, const at::Tensor& lent) {
  if (lent.defined()) views_[slot].copy_(lent);
}

}  // namespace lockstep::reducer
