// Executes a request (comm/request.h) with the calls of a c10d backend.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <lockstep/c10d.h>

#include "comm/request.h"

namespace lockstep::foreign {

using Tensors = std::vector<at::Tensor>;
using C10dWork = c10::intrusive_ptr<c10d::Work>;

// The pieces of a request as flat tensors of this dtype, which keep the request's memory alive: a backend may
// still use it after a wait was given up.
Tensors given_tensors(const comm::Request& request, c10::ScalarType dtype);
Tensors taken_tensors(const comm::Request& request, c10::ScalarType dtype);
inline Tensors given_tensors(const comm::Request& request) { return given_tensors(request, request.dtype); }
inline Tensors taken_tensors(const comm::Request& request) { return taken_tensors(request, request.dtype); }

c10d::ReduceOp::RedOpType to_c10d(ReduceOp op);

C10dWork all_reduce(c10d_backend& backend, const at::Tensor& tensor, c10d::ReduceOp::RedOpType op);
C10dWork reduce(c10d_backend& backend, const at::Tensor& tensor, c10d::ReduceOp::RedOpType op, int root);
// Calls that move bytes without reducing: broadcast, all-gather, gather, scatter, all-to-all, barrier. The
// tensors are in the order of the request's pieces.
C10dWork move(c10d_backend& backend, const comm::Request& request, const Tensors& give, const Tensors& take);

}  // namespace lockstep::foreign
