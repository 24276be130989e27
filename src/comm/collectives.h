// The collectives of a process group, each as an asynchronous call on its c10d backend.
//
// Every call does the same in the same order: refuse on a poisoned group, check the arguments, answer at once
// in a world of one, hand a wire tensor to the backend. A tensor without elements takes part as any other:
// the ranks' calls are matched by their order.
#pragma once

#include <memory>
#include <vector>

#include "comm/group.h"

namespace lockstep::comm {

using GroupPtr = std::shared_ptr<ProcessGroup::Impl>;

Work all_reduce(const GroupPtr& group, const at::Tensor& tensor, ReduceOp op);
Work broadcast(const GroupPtr& group, const at::Tensor& tensor, int root);
Work reduce(const GroupPtr& group, const at::Tensor& tensor, int root, ReduceOp op);
Work all_gather(const GroupPtr& group, const at::Tensor& tensor);
Work all_gather_into_tensor(const GroupPtr& group, const at::Tensor& output, const at::Tensor& input);
Work reduce_scatter_tensor(const GroupPtr& group, const at::Tensor& output, const at::Tensor& input,
                           ReduceOp op);
Work gather(const GroupPtr& group, const at::Tensor& tensor, int root);
Work scatter(const GroupPtr& group, const at::Tensor& output, const std::vector<at::Tensor>& inputs,
             int root);
Work all_to_all_single(const GroupPtr& group, const at::Tensor& output, const at::Tensor& input);
Work send(const GroupPtr& group, const at::Tensor& tensor, int to, int tag);
Work recv(const GroupPtr& group, const at::Tensor& tensor, int from, int tag);
Work barrier(const GroupPtr& group);

}  // namespace lockstep::comm
