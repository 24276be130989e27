// One tensor for all ranks of a machine: each of them maps the same pages.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/process_group.h>

namespace lockstep::comm {

// The ranks of this machine, as a transport that supplies memory knows them.
class Neighbours {
 public:
  virtual std::vector<int> ranks() const = 0;  // ascending, with this one
  // Where memory is that the transport has supplied to this rank, for map() on the others.
  virtual uint64_t offset_of(const at::Tensor& memory) const = 0;
  // The memory of a neighbour, as bytes. The tensor keeps the mapping alive, not what the neighbour has
  // there.
  virtual at::Tensor map(int rank, uint64_t offset, int64_t bytes) = 0;

 protected:
  ~Neighbours() = default;
};

// Filled with zeros. The pages are freed when all ranks of the machine have released their tensors and one
// of these calls follows, or with the processes. `first`: whether this rank is the first one of its machine.
// All ranks of the group must call it; it blocks. Throws UsageError if the group's transport has no memory
// that its ranks can share.
struct CommonMemory {
  at::Tensor tensor;
  bool first;
};
CommonMemory allocate_common(ProcessGroup& group, int64_t elements, at::ScalarType dtype);

}  // namespace lockstep::comm
