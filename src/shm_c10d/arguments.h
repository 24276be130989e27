// What the arguments of c10d's calls must be. The rules and the words are those of LibTorch's Gloo backend,
// so that code and tests written for it see no difference; each throws compat::ArgumentError before anything
// has begun.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <lockstep/process_group.h>

namespace lockstep::shm_c10d {

class Arguments {
 public:
  Arguments(const char* call, int rank, int world_size) : call_(call), rank_(rank), world_size_(world_size) {}

  using List = at::ArrayRef<at::Tensor>;

  void root(int64_t rank) const;
  void root_tensor(int64_t index, size_t count) const;
  void not_empty(List tensors) const;
  void single(List tensors) const;
  void single_message(List tensors) const;
  void single_input(List tensors) const;
  void single_output(List tensors) const;
  // Strided and on the CPU, all of them.
  void dense(List tensors) const;
  void on_cpu(List tensors) const;
  // The one operation that sparse tensors know.
  void sparse_sum(const c10d::ReduceOp& op) const;
  // Type and size as those of `like`.
  void alike(const at::Tensor& like, List tensors) const;
  // Of any sizes.
  void same_type(const at::Tensor& like, List tensors) const;
  // For calls that make one tensor of all.
  void can_coalesce(List tensors) const;
  void peer(int rank) const;
  void tag(int tag) const;
  ReduceOp reduction(const c10d::ReduceOp& op) const;
  [[noreturn]] void refuse(const std::string& why) const;

 private:
  const char* call_;
  int rank_;
  int world_size_;
};

}  // namespace lockstep::shm_c10d
