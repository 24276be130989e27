// Which stretches of memory the tensors of a state dict lie in: each is written as one storage of a .pt file.
#pragma once

#include "snapshot/named_tensors.h"

namespace lockstep::snapshot {

// Tensors whose memory overlaps share a stretch. It is not the whole of what was allocated: a view of a large
// buffer brings only its own part.
class PtLayout {
 public:
  // Tensors must be dense and have values.
  explicit PtLayout(const NamedTensors& tensors);

  struct Stretch {
    at::Tensor elements;  // one-dimensional
    std::string key;      // "0", "1", … in the order of the tensors
  };
  const std::vector<Stretch>& stretches() const { return stretches_; }

  // By the tensor's place in the list. The tensor has the sizes and strides that it has in its stretch.
  const at::Tensor& tensor(size_t i) const { return tensors_[i]; }
  const Stretch& stretch(size_t i) const { return stretches_[stretch_of_[i]]; }
  // Where it begins there, in elements.
  int64_t offset(size_t i) const;

 private:
  // Puts order[i], and all after it that overlap, into a new stretch. Returns where the next one begins.
  size_t add_stretch(const std::vector<size_t>& order, size_t i);

  std::vector<at::Tensor> tensors_;
  std::vector<size_t> stretch_of_;  // by tensor
  std::vector<Stretch> stretches_;
};

}  // namespace lockstep::snapshot
