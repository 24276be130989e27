// The sum of sparse tensors over all ranks, as two collectives: the ranks exchange how many elements each
// has, and then gather indices and values.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/request.h"

namespace lockstep::c10d_face {

class SparseSum {
 public:
  // This rank's COO tensors, of the same type and size.
  SparseSum(const std::vector<at::Tensor>& tensors, int rank, int world_size);

  // The first collective.
  comm::Request exchange_facts();
  // The second one, after the first is complete. Throws MismatchError if the ranks' tensors cannot be added.
  comm::Request gather();
  // After the second is complete. Coalesced; added in rank order.
  at::Tensor result() const;

 private:
  const int rank_;
  const int world_size_;
  at::Tensor mine_;   // coalesced
  at::Tensor facts_;  // of this rank
  at::Tensor all_facts_;
  at::Tensor elements_;  // bytes: this rank's indices, then its values; as large as the largest of any rank
  at::Tensor all_elements_;
};

}  // namespace lockstep::c10d_face
