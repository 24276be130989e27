// The calls of a process group: each is checked and described (request.h), then run or started (work.h).
//
// An empty tensor takes part like any other, because the ranks' calls are matched by their order.
#pragma once

#include <vector>

#include "comm/group.h"
#include "comm/work.h"

namespace lockstep::comm {

Prepared all_reduce(const ProcessGroup::Impl& group, Returns when, const at::Tensor& tensor, ReduceOp op);
Prepared broadcast(const ProcessGroup::Impl& group, Returns when, const at::Tensor& tensor, int root);
Prepared reduce(const ProcessGroup::Impl& group, Returns when, const at::Tensor& tensor, int root,
                ReduceOp op);
Prepared all_gather(const ProcessGroup::Impl& group, Returns when, const at::Tensor& tensor);
Prepared all_gather_into_tensor(const ProcessGroup::Impl& group, Returns when, const at::Tensor& output,
                                const at::Tensor& input);
Prepared reduce_scatter_tensor(const ProcessGroup::Impl& group, Returns when, const at::Tensor& output,
                               const at::Tensor& input, ReduceOp op);
Prepared gather(const ProcessGroup::Impl& group, Returns when, const at::Tensor& tensor, int root);
Prepared scatter(const ProcessGroup::Impl& group, Returns when, const at::Tensor& output,
                 const std::vector<at::Tensor>& inputs, int root);
Prepared all_to_all_single(const ProcessGroup::Impl& group, Returns when, const at::Tensor& output,
                           const at::Tensor& input);
Prepared send(const ProcessGroup::Impl& group, Returns when, const at::Tensor& tensor, int to, int tag);
Prepared recv(const ProcessGroup::Impl& group, Returns when, const at::Tensor& tensor, int from, int tag);
Prepared barrier();

}  // namespace lockstep::comm
