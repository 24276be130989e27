#include "reducer/bucket.h"

#include <ATen/ATen.h>

namespace lockstep::reducer {

namespace {

// Gradients begin where vector registers like it.
constexpr int64_t kAlignment = 64;

int64_t padded(int64_t elements, int64_t element_bytes) {
  const int64_t unit = kAlignment / element_bytes;
  return (elements + unit - 1) / unit * unit;
}

}  // namespace

Bucket::Bucket(ProcessGroup& group, const Parameters& parameters, std::vector<size_t> members, bool sparse)
    : members_(std::move(members)), sparse_(sparse) {
  if (sparse_) return;
  const auto options = parameters[members_.front()].tensor.options().requires_grad(false);
  const auto element_bytes = static_cast<int64_t>(options.dtype().itemsize());
  int64_t elements = 0;
  for (const auto index : members_) elements += padded(parameters[index].tensor.numel(), element_bytes);
  flat_ = group.empty({elements}, options);
  flat_.zero_();

  int64_t offset = 0;
  for (const auto index : members_) {
    const auto& tensor = parameters[index].tensor;
    const auto like = tensor.is_non_overlapping_and_dense()
                          ? tensor.strides().vec()
                          : at::empty(tensor.sizes(), at::kMeta).strides().vec();
    views_.push_back(
        at::empty({0}, options).set_(flat_.storage(), flat_.storage_offset() + offset, tensor.sizes(), like));
    offset += padded(tensor.numel(), element_bytes);
  }
}

bool Bucket::holds(size_t slot, const at::Tensor& gradient) const {
  const auto& view = views_[slot];
  return gradient.data_ptr() == view.data_ptr() && gradient.strides() == view.strides();
}

}  // namespace lockstep::reducer
