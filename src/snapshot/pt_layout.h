// Maps the tensors of a state dict to stretches of memory, each of which is written as one storage of a .pt
// file.
#pragma once

#include "snapshot/named_tensors.h"

namespace lockstep::snapshot {

// Tensors whose memory overlaps share a stretch. A stretch covers only the memory that its tensors use: for a
// view of a large buffer, only the part that is viewed.
class PtLayout {
 public:
  // The tensors must be dense and have values.
  explicit PtLayout(const NamedTensors& tensors);

  struct Stretch {
    at::Tensor elements;  // one-dimensional
    std::string key;      // "0", "1", … in the order of the tensors
  };
  const std::vector<Stretch>& stretches() const { return stretches_; }

  // By the index of the tensor in the list. The tensor has the same sizes and strides in its stretch.
  const at::Tensor& tensor(size_t i) const { return tensors_[i]; }
  const Stretch& stretch(size_t i) const { return stretches_[stretch_of_[i]]; }
  // The offset of the tensor in its stretch, in elements.
  int64_t offset(size_t i) const;

 private:
  // Adds a stretch for order[i] and all following tensors that overlap it. Returns the index of the next
  // tensor.
  size_t add_stretch(const std::vector<size_t>& order, size_t i);

  std::vector<at::Tensor> tensors_;
  std::vector<size_t> stretch_of_;  // by the index of the tensor
  std::vector<Stretch> stretches_;
};

}  // namespace lockstep::snapshot
