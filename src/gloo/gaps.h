// Implements what LibTorch's Gloo backend lacks with what it has: dtypes, averages, bitwise operations.
//
// A call sends a *wire* tensor, which is the caller's own if the backend supports it, and copies the result
// back when the backend has finished. Data that is not reduced is sent as bytes, so that every dtype is
// supported.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <lockstep/process_group.h>

namespace lockstep::gloo {

struct Wire {
  at::Tensor tensor;
  c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM;
  std::function<void()> finish;  // may be empty
};

// How to reduce `tensor` (contiguous) in place. nullopt if the backend cannot reduce it at all; then all
// ranks gather the parts, and each reduces them itself.
std::optional<Wire> reduction_wire(const at::Tensor& tensor, ReduceOp op, int world_size);

// The same memory as flat bytes; `tensor` must be contiguous.
at::Tensor as_bytes(const at::Tensor& tensor);

// Reduces one part of each rank, in rank order; half-precision types in fp32.
at::Tensor reduce_locally(const std::vector<at::Tensor>& parts, ReduceOp op);

}  // namespace lockstep::gloo
