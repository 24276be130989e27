// Checks the arguments of c10d calls. Rules and messages are those of LibTorch's Gloo backend, so that code
// and tests written for it see no difference. Each check throws c10::Error, before any operation
// is started.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <lockstep/process_group.h>

#include "c10d_face/engine.h"

namespace lockstep::c10d_face {

class Arguments {
 public:
  Arguments(const char* call, const Engine& engine) : call_(call), engine_(engine) {}

  using List = at::ArrayRef<at::Tensor>;

  void root(int64_t rank) const;
  void root_tensor(int64_t index, size_t count) const;
  void not_empty(List tensors) const;
  void single(List tensors) const;
  void single_message(List tensors) const;
  void single_input(List tensors) const;
  void single_output(List tensors) const;
  // All are strided and on the CPU.
  void dense(List tensors) const;
  void on_cpu(List tensors) const;
  // Sparse tensors can be summed only.
  void sparse_sum(const c10d::ReduceOp& op) const;
  // Same type and size as `like`.
  void alike(const at::Tensor& like, List tensors) const;
  // Sizes may differ.
  void same_type(const at::Tensor& like, List tensors) const;
  // For calls that combine all tensors into one.
  void can_coalesce(List tensors) const;
  void peer(int rank) const;
  void tag(int tag) const;
  ReduceOp reduction(const c10d::ReduceOp& op) const;
  [[noreturn]] void reject(const std::string& why) const;

 private:
  const char* call_;
  const Engine& engine_;
};

}  // namespace lockstep::c10d_face
