// The sum of sparse tensors over all ranks, as two collectives: the ranks tell each other how many elements
// each has, and then gather indices and values.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/request.h"

namespace lockstep::shm_c10d {

class SparseSum {
 public:
  // Of this rank: COO tensors of one type and size.
  SparseSum(const std::vector<at::Tensor>& tensors, int rank, int world_size);

  // The first collective.
  comm::Request tell();
  // The second one, when the first is done. Throws MismatchError if the ranks' tensors cannot be added.
  comm::Request gather();
  // When that is done. Coalesced, added in the order of the ranks.
  at::Tensor result() const;

 private:
  const int rank_;
  const int world_size_;
  at::Tensor mine_;   // coalesced
  at::Tensor facts_;  // of this rank
  at::Tensor all_facts_;
  at::Tensor elements_;  // bytes: this rank's indices, then its values, with room for the most of any rank
  at::Tensor all_elements_;
};

}  // namespace lockstep::shm_c10d
