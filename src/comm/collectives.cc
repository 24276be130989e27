#include "comm/collectives.h"

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "comm/checks.h"
#include "comm/dense.h"
#include "comm/from_tensors.h"

namespace lockstep::comm {

namespace {

using Impl = ProcessGroup::Impl;

// Collects the tensors that a call must keep alive, and the results that it must copy back.
class Tensorial {
 public:
  Tensorial(Prepared& call, Returns when) : call_(call), when_(when) {}

  // An input: the tensor itself if it is dense (dense.h), otherwise a dense copy.
  at::Tensor given(const at::Tensor& tensor) {
    if (is_dense(tensor)) {
      keep(tensor);
      return tensor;
    }
    return kept(dense_of(tensor));
  }
  // An output: the tensor itself, or memory from which the results are copied to it at the end.
  at::Tensor taken(const at::Tensor& tensor) { return is_dense(tensor) ? given(tensor) : apart(tensor); }
  at::Tensor apart(const at::Tensor& tensor) {
    return copied_back(tensor, at::empty(tensor.sizes(), plain_like(tensor)));
  }
  // Both input and output.
  at::Tensor given_and_taken(const at::Tensor& tensor) {
    return is_dense(tensor) ? given(tensor) : copied_back(tensor, dense_of(tensor));
  }
  at::Tensor kept(at::Tensor tensor) {
    kept_.push_back(tensor);
    return tensor;
  }

  // Call it when the request has been built.
  void settle() {
    auto& request_keep = call_.request.keep;
    request_keep.insert(request_keep.end(), kept_.begin(), kept_.end());
  }

 private:
  static at::TensorOptions plain_like(const at::Tensor& tensor) {
    return tensor.options().requires_grad(false).memory_format(at::MemoryFormat::Contiguous);
  }
  // A device executes the call after it has returned.
  void keep(const at::Tensor& tensor) {
    if (when_ == Returns::AtOnce || !tensor.device().is_cpu()) kept_.push_back(tensor);
  }
  at::Tensor copied_back(const at::Tensor& tensor, at::Tensor landed) {
    kept(landed);
    call_.needs_results().finish = [target = tensor.detach(), landed] {
      target.copy_(landed.view(target.sizes()));
    };
    return landed;
  }

  Prepared& call_;
  const Returns when_;
  c10::SmallVector<at::Tensor, 2> kept_;
};

// Nothing to copy, nothing to keep alive, nothing more to check: the fast path, without reference counting.
bool is_plain(Returns when, const at::Tensor& tensor) {
  return when == Returns::WhenComplete && tensor.defined() && tensor.layout() == at::kStrided &&
         tensor.device().is_cpu() && is_dense(tensor);
}

Tensors rows_of(const at::Tensor& flat, int64_t count) { return flat.view({count, -1}).unbind(); }

// A flat tensor with room for a tensor like `like` from each rank.
at::Tensor room_for_all(const Impl& group, const at::Tensor& like) {
  return at::empty({group.world_size * like.numel()},
                   like.options().requires_grad(false).memory_format(at::MemoryFormat::Contiguous));
}

Tensors shaped(const Tensors& flat, at::IntArrayRef sizes) {
  Tensors tensors;
  for (const auto& row : flat) tensors.push_back(row.view(sizes));
  return tensors;
}

}  // namespace

Prepared all_reduce(const Impl& group, Returns when, const at::Tensor& tensor, ReduceOp op) {
  if (is_plain(when, tensor)) {
    check_reduction(op, tensor.scalar_type());
    return {.request = all_reduce_of(tensor, op)};
  }
  check_target(group, "all_reduce", tensor);
  check_reduction(op, tensor.scalar_type());
  Prepared call;
  Tensorial tensors(call, when);
  call.request = all_reduce_of(tensors.given_and_taken(tensor), op);
  tensors.settle();
  return call;
}

Prepared reduce(const Impl& group, Returns when, const at::Tensor& tensor, int root, ReduceOp op) {
  if (is_plain(when, tensor)) {
    check_reduction(op, tensor.scalar_type());
    check_rank(group, "reduce", root);
    return {.request = reduce_of(tensor, op, root, group.rank)};
  }
  check_target(group, "reduce", tensor);
  check_reduction(op, tensor.scalar_type());
  check_rank(group, "reduce", root);
  Prepared call;
  Tensorial tensors(call, when);
  call.request = reduce_of(group.rank == root ? tensors.given_and_taken(tensor) : tensors.given(tensor), op,
                           root, group.rank);
  tensors.settle();
  return call;
}

Prepared broadcast(const Impl& group, Returns when, const at::Tensor& tensor, int root) {
  if (is_plain(when, tensor)) {
    check_rank(group, "broadcast", root);
    return {.request = broadcast_of(tensor, root, group.rank)};
  }
  check_target(group, "broadcast", tensor);
  check_rank(group, "broadcast", root);
  Prepared call;
  Tensorial tensors(call, when);
  call.request =
      broadcast_of(group.rank == root ? tensors.given(tensor) : tensors.taken(tensor), root, group.rank);
  tensors.settle();
  return call;
}

Prepared all_gather(const Impl& group, Returns when, const at::Tensor& tensor) {
  check_tensor(group, "all_gather", tensor);
  Prepared call;
  Tensorial tensors(call, when);
  const auto given = tensors.given(tensor);
  const auto all = room_for_all(group, given);  // kept by the result
  call.needs_results().made = shaped(rows_of(all, group.world_size), tensor.sizes());
  call.request = all_gather_of(tensors.kept(all), given, group.world_size);
  tensors.settle();
  return call;
}

Prepared all_gather_into_tensor(const Impl& group, Returns when, const at::Tensor& output,
                                const at::Tensor& input) {
  if (is_plain(when, output) && is_plain(when, input) && !overlap(output, input)) {
    check_sizes(group, "all_gather_into_tensor", output, input);
    return {.request = all_gather_of(output, input, group.world_size)};
  }
  check_parts(group, "all_gather_into_tensor", output, input);
  check_target(group, "all_gather_into_tensor", output);
  Prepared call;
  Tensorial tensors(call, when);
  const auto taken = tensors.taken(output);
  auto given = tensors.given(input);
  if (overlap_askew(taken, given, group.rank)) given = tensors.kept(given.clone());
  call.request = all_gather_of(taken, given, group.world_size);
  call.request.name = "all_gather_into_tensor";
  tensors.settle();
  return call;
}

Prepared reduce_scatter_tensor(const Impl& group, Returns when, const at::Tensor& output,
                               const at::Tensor& input, ReduceOp op) {
  if (is_plain(when, output) && is_plain(when, input) && !overlap(output, input)) {
    check_sizes(group, "reduce_scatter_tensor", input, output);
    check_reduction(op, input.scalar_type());
    return {.request = reduce_scatter_of(output, input, op, group.world_size)};
  }
  check_parts(group, "reduce_scatter_tensor", input, output);
  check_target(group, "reduce_scatter_tensor", output);
  check_reduction(op, input.scalar_type());
  Prepared call;
  Tensorial tensors(call, when);
  const auto given = tensors.given(input);
  auto taken = tensors.taken(output);
  if (overlap_askew(given, taken, group.rank)) taken = tensors.apart(output);
  call.request = reduce_scatter_of(taken, given, op, group.world_size);
  call.request.name = "reduce_scatter_tensor";
  tensors.settle();
  return call;
}

Prepared gather(const Impl& group, Returns when, const at::Tensor& tensor, int root) {
  check_tensor(group, "gather", tensor);
  check_rank(group, "gather", root);
  Prepared call;
  Tensorial tensors(call, when);
  const auto given = tensors.given(tensor);
  Tensors rows;
  if (group.rank == root) {
    rows = rows_of(tensors.kept(room_for_all(group, given)), group.world_size);
    call.needs_results().made = shaped(rows, tensor.sizes());
  }
  call.request = gather_of(rows, given, root);
  tensors.settle();
  return call;
}

Prepared scatter(const Impl& group, Returns when, const at::Tensor& output, const Tensors& inputs, int root) {
  check_target(group, "scatter", output);
  check_rank(group, "scatter", root);
  Prepared call;
  Tensorial tensors(call, when);
  Tensors parts;
  if (group.rank == root) {
    if (inputs.size() != static_cast<size_t>(group.world_size)) {
      refuse(group, "scatter", fmt::format("root passed {} tensors", inputs.size()),
             fmt::format("pass one for each of the {} ranks", group.world_size));
    }
    for (const auto& input : inputs) {
      check_tensor(group, "scatter", input);
      check_alike(group, "scatter", output, input);
      parts.push_back(tensors.given(input));
    }
  }
  call.request = scatter_of(tensors.taken(output), parts, root);
  tensors.settle();
  return call;
}

Prepared all_to_all_single(const Impl& group, Returns when, const at::Tensor& output,
                           const at::Tensor& input) {
  check_target(group, "all_to_all_single", output);
  check_tensor(group, "all_to_all_single", input);
  check_alike(group, "all_to_all_single", output, input);
  if (input.numel() % group.world_size != 0) {
    refuse(group, "all_to_all_single", fmt::format("{} elements cannot be divided evenly", input.numel()),
           fmt::format("their number must be divisible by {}", group.world_size));
  }
  Prepared call;
  Tensorial tensors(call, when);
  const auto taken = tensors.taken(output);
  auto given = tensors.given(input);
  // Pieces are received while others are still being sent.
  if (overlap(taken, given)) given = tensors.kept(given.clone());
  const std::vector<int64_t> equal(group.world_size, input.numel() / group.world_size);
  call.request = all_to_all_of(taken, given, equal, equal);
  call.request.name = "all_to_all_single";
  tensors.settle();
  return call;
}

Prepared send(const Impl& group, Returns when, const at::Tensor& tensor, int to, int tag) {
  if (is_plain(when, tensor)) {
    check_peer(group, "send", to, tag);
    return {.request = send_of(tensor, to, tag)};
  }
  check_tensor(group, "send", tensor);
  check_peer(group, "send", to, tag);
  Prepared call;
  Tensorial tensors(call, when);
  call.request = send_of(tensors.given(tensor), to, tag);
  tensors.settle();
  return call;
}

Prepared recv(const Impl& group, Returns when, const at::Tensor& tensor, int from, int tag) {
  if (is_plain(when, tensor)) {
    check_peer(group, "recv", from, tag);
    return {.request = receive_of(tensor, from, tag)};
  }
  check_target(group, "recv", tensor);
  check_peer(group, "recv", from, tag);
  Prepared call;
  Tensorial tensors(call, when);
  call.request = receive_of(tensors.taken(tensor), from, tag);
  tensors.settle();
  return call;
}

Prepared barrier() { return {}; }

}  // namespace lockstep::comm
