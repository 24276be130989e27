#include "snapshot/pt_layout.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include <ATen/ATen.h>

namespace lockstep::snapshot {

namespace {

// The index after the last element, counted from the start of the memory.
int64_t end_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return tensor.storage_offset();
  int64_t last = tensor.storage_offset();
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return last + 1;
}

}  // namespace

PtLayout::PtLayout(const NamedTensors& tensors) : stretch_of_(tensors.size()) {
  for (const auto& [name, tensor] : tensors) {
    // The file cannot represent the conjugate and negative bits.
    tensors_.push_back(tensor.detach().resolve_conj().resolve_neg());
  }
  // A storage in the file has one dtype, so memory used as two dtypes is written twice.
  const auto place = [&](size_t i) {
    const auto& tensor = tensors_[i];
    return std::tuple(tensor.storage().unsafeGetStorageImpl(), tensor.scalar_type(), tensor.storage_offset());
  };
  std::vector<size_t> order(tensors_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return place(a) < place(b); });
  for (size_t i = 0; i < order.size();) i = add_stretch(order, i);

  int next_key = 0;
  for (const auto index : stretch_of_) {
    auto& key = stretches_[index].key;
    if (key.empty()) key = std::to_string(next_key++);
  }
}

size_t PtLayout::add_stretch(const std::vector<size_t>& order, size_t i) {
  const auto& first = tensors_[order[i]];
  auto end = end_of(first);
  for (; i < order.size(); ++i) {
    const auto& tensor = tensors_[order[i]];
    const bool overlaps =
        tensor.is_same(first) ||
        (tensor.storage().unsafeGetStorageImpl() == first.storage().unsafeGetStorageImpl() &&
         tensor.scalar_type() == first.scalar_type() && tensor.storage_offset() < end);
    if (!overlaps) break;
    end = std::max(end, end_of(tensor));
    stretch_of_[order[i]] = stretches_.size();
  }
  auto elements = at::empty({0}, first.options());
  elements.set_(first.storage(), first.storage_offset(), {end - first.storage_offset()}, {1});
  stretches_.push_back({elements, {}});
  return i;
}

int64_t PtLayout::offset(size_t i) const {
  return tensors_[i].storage_offset() - stretch(i).elements.storage_offset();
}

}  // namespace lockstep::snapshot
