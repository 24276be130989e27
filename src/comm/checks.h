// What the arguments of a collective must be. Each throws UsageError, before anything has been sent.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "comm/group.h"

namespace lockstep::comm {

[[noreturn]] void refuse(const ProcessGroup::Impl& group, const char* name, const std::string& evidence,
                         const std::string& hint);

// Defined, dense, and on a device that the group's transport carries.
void check_tensor(const ProcessGroup::Impl& group, const char* name, const at::Tensor& tensor);
// A tensor that receives: also, no two of its elements share memory, as expand() makes them.
void check_target(const ProcessGroup::Impl& group, const char* name, const at::Tensor& tensor);
void check_rank(const ProcessGroup::Impl& group, const char* name, int rank);
// The other side of a send or receive.
void check_peer(const ProcessGroup::Impl& group, const char* name, int peer, int tag);
// `large` must hold world_size times what `small` holds, of the same dtype; check_parts() also checks each.
void check_sizes(const ProcessGroup::Impl& group, const char* name, const at::Tensor& large,
                 const at::Tensor& small);
void check_parts(const ProcessGroup::Impl& group, const char* name, const at::Tensor& large,
                 const at::Tensor& small);
// The operation must mean something for the dtype: no average of integers, no minimum of complex numbers, no
// bitwise and of floats.
void check_reduction(ReduceOp op, at::ScalarType dtype);
// As many elements of the same dtype.
void check_alike(const ProcessGroup::Impl& group, const char* name, const at::Tensor& output,
                 const at::Tensor& input);

}  // namespace lockstep::comm
