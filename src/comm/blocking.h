// Blocking calls on backends of our own, by the shortest way. Each returns false, having done nothing, when
// the call has to go the long way (comm/collectives.h): another backend, or tensors whose memory is not their
// elements in order.
#pragma once

#include "comm/group.h"

namespace lockstep::comm {

bool all_reduce_now(ProcessGroup::Impl& group, const at::Tensor& tensor, ReduceOp op);
bool broadcast_now(ProcessGroup::Impl& group, const at::Tensor& tensor, int root);
bool all_gather_now(ProcessGroup::Impl& group, const at::Tensor& output, const at::Tensor& input);
bool reduce_scatter_now(ProcessGroup::Impl& group, const at::Tensor& output, const at::Tensor& input,
                        ReduceOp op);
bool barrier_now(ProcessGroup::Impl& group);

}  // namespace lockstep::comm
