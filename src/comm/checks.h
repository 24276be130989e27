// Checks the arguments of a collective. Each function throws UsageError, before anything is sent.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "comm/group.h"

namespace lockstep::comm {

[[noreturn]] void refuse(const ProcessGroup::Impl& group, const char* name, const std::string& evidence,
                         const std::string& hint);

// Why the group cannot use tensors on this device, and what to do instead. For errors; the device must not be
// one that the group's transport supports.
struct DeviceRefusal {
  std::string evidence, hint;
};
DeviceRefusal refusal_of(const ProcessGroup::Impl& group, c10::Device device);

// Must be defined, not sparse, and on a device that the group's transport supports.
void check_tensor(const ProcessGroup::Impl& group, const char* name, const at::Tensor& tensor);
// For a tensor that receives results: in addition, no two of its elements may share memory, as after
// expand().
void check_target(const ProcessGroup::Impl& group, const char* name, const at::Tensor& tensor);
void check_rank(const ProcessGroup::Impl& group, const char* name, int rank);
// The peer and the tag of a send or receive.
void check_peer(const ProcessGroup::Impl& group, const char* name, int peer, int tag);
// `large` must hold world_size times what `small` holds, of the same dtype and on the same device;
// check_parts() also checks each.
void check_sizes(const ProcessGroup::Impl& group, const char* name, const at::Tensor& large,
                 const at::Tensor& small);
void check_parts(const ProcessGroup::Impl& group, const char* name, const at::Tensor& large,
                 const at::Tensor& small);
// The operation must be defined for the dtype: no average of integers, no minimum of complex numbers, no
// bitwise operation on floating-point numbers.
void check_reduction(ReduceOp op, at::ScalarType dtype);
// Must have the same number of elements, the same dtype and the same device.
void check_alike(const ProcessGroup::Impl& group, const char* name, const at::Tensor& output,
                 const at::Tensor& input);

}  // namespace lockstep::comm
