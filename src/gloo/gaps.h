// What LibTorch's Gloo backend lacks, expressed by what it has: dtypes, averages, bitwise operations.
//
// A call sends a *wire* tensor, which is the caller's own where the backend can take it, and brings the
// result back when the backend is done. Data that only moves travels as bytes, so that every dtype does.
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

// How to reduce `tensor` (contiguous) in place. Nothing when the backend cannot reduce it at all; then the
// ranks gather, and each reduces for itself.
std::optional<Wire> reduction_wire(const at::Tensor& tensor, ReduceOp op, int world_size);

// The same memory as flat bytes; `tensor` must be contiguous.
at::Tensor as_bytes(const at::Tensor& tensor);

// Of one part for each rank, in rank order; half types in fp32.
at::Tensor reduce_locally(const std::vector<at::Tensor>& parts, ReduceOp op);

}  // namespace lockstep::gloo
