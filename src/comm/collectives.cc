#include "comm/collectives.h"

#include <fmt/format.h>
#include <optional>

#include <ATen/ATen.h>

#include "comm/checks.h"
#include "comm/dense.h"
#include "comm/failure.h"
#include "comm/fingerprint.h"
#include "comm/gaps.h"
#include "comm/start.h"

namespace lockstep::comm {

namespace {

using Tensors = std::vector<at::Tensor>;
using Kind = Fingerprint::Kind;

// The caller's memory, without its autograd history: collectives change values, not graphs.
at::Tensor bare(const at::Tensor& tensor) { return tensor.detach(); }

// A call that is done already.
Work done_with(Tensors result) {
  auto state = std::make_shared<Work::State>();
  state->result = std::move(result);
  return Work(std::move(state));
}

// A world of one talks to itself.
Work copied(const at::Tensor& target, const at::Tensor& source) {
  target.copy_(source.view(target.sizes()));
  return {};
}

Tensors rows_of(const at::Tensor& flat, int64_t count) {
  Tensors rows;
  for (const auto& row : flat.view({count, -1}).unbind()) rows.push_back(row);
  return rows;
}

// What travels for `tensor`. Gloo refuses tensors without elements, but the call must be made all the same:
// if this rank left it out, its next one would meet the others' calls of now. So zeros stand in, one for each
// rank, which every collective can divide.
at::Tensor travels_for(const ProcessGroup::Impl& group, const at::Tensor& tensor) {
  if (tensor.numel() != 0 || group.native != nullptr) return tensor;
  return at::zeros({group.world_size}, tensor.options().requires_grad(false));
}

// Flat; as bytes for a backend that does not know all dtypes.
at::Tensor wire_of(const ProcessGroup::Impl& group, const at::Tensor& tensor) {
  return group.native != nullptr ? tensor.view({-1}) : as_bytes(travels_for(group, tensor));
}

Tensors wires_of(const ProcessGroup::Impl& group, const Tensors& tensors) {
  Tensors wires;
  for (const auto& tensor : tensors) wires.push_back(wire_of(group, tensor));
  return wires;
}

// A flat tensor with room for one `like` of each rank.
at::Tensor room_for_all(const ProcessGroup::Impl& group, const at::Tensor& like) {
  return at::empty({group.world_size * like.numel()}, like.options().requires_grad(false));
}

Tensors shaped(const Tensors& flat, at::IntArrayRef sizes) {
  Tensors tensors;
  for (const auto& row : flat) tensors.push_back(row.view(sizes));
  return tensors;
}

// After a call that worked on a contiguous copy: back to where the caller wants it.
std::function<void()> copy_back(const at::Tensor& target, const at::Tensor& dense) {
  if (target.numel() == 0 || dense.data_ptr() == target.data_ptr()) return {};
  return [target, dense] { target.copy_(dense.view(target.sizes())); };
}

// Every rank gets all parts and reduces for itself.
Work reduce_by_gathering(const GroupPtr& group, const char* name, const Fingerprint& call,
                         const at::Tensor& target, const at::Tensor& dense, ReduceOp op) {
  const auto all = room_for_all(*group, dense);
  const auto parts = rows_of(all, group->world_size);
  auto outputs = std::vector<Tensors>{wires_of(*group, parts)};
  auto inputs = Tensors{wire_of(*group, dense)};
  return start_collective(group,
                          {.name = name,
                           .call = call,
                           .travelling = {dense},
                           .finish =
                               [target, parts, op] {
                                 if (target.numel() != 0)
                                   target.copy_(reduce_locally(parts, op).view(target.sizes()));
                               }},
                          [&](c10d_backend& backend) { return backend.allgather(outputs, inputs); });
}

// all_reduce and reduce: the one for everybody, the other for `root`.
Work reduction(const GroupPtr& group, const char* name, const at::Tensor& tensor, ReduceOp op,
               std::optional<int> root) {
  refuse_if_poisoned(*group);
  check_target(*group, name, tensor);
  check_reduction(op, tensor.scalar_type());
  if (root) check_rank(*group, name, *root);
  if (group->world_size == 1) return {};

  const auto target = bare(tensor);
  const auto dense = travels_for(*group, dense_of(target));
  const auto call =
      fingerprint_of(root ? Kind::Reduce : Kind::AllReduce, tensor, op, root.value_or(Fingerprint::kNoRoot));
  auto wire = reduction_wire(group->backend, dense, op, group->world_size);
  if (!wire) return reduce_by_gathering(group, name, call, target, dense, op);

  auto wires = Tensors{wire->tensor};
  return start_collective(group,
                          {.name = name,
                           .call = call,
                           .travelling = {wire->tensor},
                           .finish =
                               [unwrap = wire->finish, back = copy_back(target, dense)] {
                                 if (unwrap) unwrap();
                                 if (back) back();
                               }},
                          [&](c10d_backend& backend) {
                            if (root) {
                              c10d::ReduceOptions options;
                              options.reduceOp = wire->op;
                              options.rootRank = *root;
                              return backend.reduce(wires, options);
                            }
                            c10d::AllreduceOptions options;
                            options.reduceOp = wire->op;
                            return backend.allreduce(wires, options);
                          });
}

}  // namespace

Work all_reduce(const GroupPtr& group, const at::Tensor& tensor, ReduceOp op) {
  return reduction(group, "all_reduce", tensor, op, std::nullopt);
}

Work reduce(const GroupPtr& group, const at::Tensor& tensor, int root, ReduceOp op) {
  return reduction(group, "reduce", tensor, op, root);
}

Work broadcast(const GroupPtr& group, const at::Tensor& tensor, int root) {
  refuse_if_poisoned(*group);
  check_target(*group, "broadcast", tensor);
  check_rank(*group, "broadcast", root);
  if (group->world_size == 1) return {};

  const auto target = bare(tensor);
  const auto dense = dense_of(target);
  auto wires = Tensors{wire_of(*group, dense)};
  return start_collective(group,
                          {.name = "broadcast",
                           .call = fingerprint_of(Kind::Broadcast, tensor, std::nullopt, root),
                           .travelling = wires,
                           .finish = copy_back(target, dense)},
                          [&](c10d_backend& backend) {
                            c10d::BroadcastOptions options;
                            options.rootRank = root;
                            return backend.broadcast(wires, options);
                          });
}

Work all_gather(const GroupPtr& group, const at::Tensor& tensor) {
  refuse_if_poisoned(*group);
  check_tensor(*group, "all_gather", tensor);
  const auto dense = dense_of(tensor);
  const auto rows = rows_of(room_for_all(*group, dense), group->world_size);
  if (group->world_size == 1) rows.front().copy_(dense.view({-1}));
  auto result = shaped(rows, tensor.sizes());
  if (group->world_size == 1) return done_with(std::move(result));

  auto outputs = std::vector<Tensors>{wires_of(*group, rows)};
  auto inputs = Tensors{wire_of(*group, dense)};
  return start_collective(group,
                          {.name = "all_gather",
                           .call = fingerprint_of(Kind::AllGather, tensor),
                           .travelling = inputs,
                           .result = std::move(result)},
                          [&](c10d_backend& backend) { return backend.allgather(outputs, inputs); });
}

Work all_gather_into_tensor(const GroupPtr& group, const at::Tensor& output, const at::Tensor& input) {
  refuse_if_poisoned(*group);
  check_parts(*group, "all_gather_into_tensor", output, input);
  check_target(*group, "all_gather_into_tensor", output);
  const auto target = bare(output);
  const auto dense = dense_of(input);
  if (group->world_size == 1) return copied(target, dense);
  const auto all = landing_place(target);
  auto outputs = std::vector<Tensors>{wires_of(*group, rows_of(all, group->world_size))};
  auto inputs = Tensors{wire_of(*group, dense)};
  return start_collective(group,
                          {.name = "all_gather_into_tensor",
                           .call = fingerprint_of(Kind::AllGather, input),
                           .travelling = inputs,
                           .finish = copy_back(target, all)},
                          [&](c10d_backend& backend) { return backend.allgather(outputs, inputs); });
}

Work reduce_scatter_tensor(const GroupPtr& group, const at::Tensor& output, const at::Tensor& input,
                           ReduceOp op) {
  refuse_if_poisoned(*group);
  check_parts(*group, "reduce_scatter_tensor", input, output);
  check_target(*group, "reduce_scatter_tensor", output);
  check_reduction(op, input.scalar_type());
  const auto target = bare(output);
  const auto dense = dense_of(input);
  if (group->world_size == 1) return copied(target, dense);
  if (group->native != nullptr) {
    const auto landed = landing_place(target);
    auto wire_out = wire_of(*group, landed);
    auto wire_in = wire_of(*group, dense);
    return start_collective(group,
                            {.name = "reduce_scatter_tensor",
                             .call = fingerprint_of(Kind::ReduceScatter, input, op),
                             .travelling = {wire_out, wire_in},
                             .finish = copy_back(target, landed)},
                            [&](c10d_backend& backend) {
                              c10d::ReduceScatterOptions options;
                              options.reduceOp = to_c10d(op);
                              return backend._reduce_scatter_base(wire_out, wire_in, options);
                            });
  }
  // Gloo has no reduce-scatter before 2.x, and later only for some dtypes. Exchanging the parts and reducing
  // one's own moves as few bytes, and takes the ranks in order.
  const auto received = at::empty_like(dense);
  auto wire_out = wire_of(*group, received);
  auto wire_in = wire_of(*group, dense);
  std::vector<int64_t> equal_parts;
  return start_collective(group,
                          {.name = "reduce_scatter_tensor",
                           .call = fingerprint_of(Kind::ReduceScatter, input, op),
                           .travelling = {wire_out, wire_in},
                           .finish = [target, parts = rows_of(received, group->world_size),
                                      op] { target.copy_(reduce_locally(parts, op).view(target.sizes())); }},
                          [&](c10d_backend& backend) {
                            return backend.alltoall_base(wire_out, wire_in, equal_parts, equal_parts);
                          });
}

Work gather(const GroupPtr& group, const at::Tensor& tensor, int root) {
  refuse_if_poisoned(*group);
  check_tensor(*group, "gather", tensor);
  check_rank(*group, "gather", root);
  const bool receives = group->rank == root;
  const auto dense = dense_of(tensor);
  const auto rows = receives ? rows_of(room_for_all(*group, dense), group->world_size) : Tensors{};
  if (group->world_size == 1) rows.front().copy_(dense.view({-1}));
  auto result = shaped(rows, tensor.sizes());
  if (group->world_size == 1) return done_with(std::move(result));

  auto outputs = receives ? std::vector<Tensors>{wires_of(*group, rows)} : std::vector<Tensors>{};
  auto inputs = Tensors{wire_of(*group, dense)};
  return start_collective(group,
                          {.name = "gather",
                           .call = fingerprint_of(Kind::Gather, tensor, std::nullopt, root),
                           .travelling = inputs,
                           .result = std::move(result)},
                          [&](c10d_backend& backend) {
                            c10d::GatherOptions options;
                            options.rootRank = root;
                            return backend.gather(outputs, inputs, options);
                          });
}

Work scatter(const GroupPtr& group, const at::Tensor& output, const std::vector<at::Tensor>& inputs,
             int root) {
  refuse_if_poisoned(*group);
  check_target(*group, "scatter", output);
  check_rank(*group, "scatter", root);
  const bool gives = group->rank == root;
  Tensors parts;
  if (gives) {
    if (inputs.size() != static_cast<size_t>(group->world_size)) {
      refuse(*group, "scatter", fmt::format("the root gave {} tensors", inputs.size()),
             fmt::format("give one for each of the {} ranks", group->world_size));
    }
    for (const auto& input : inputs) {
      check_tensor(*group, "scatter", input);
      check_alike(*group, "scatter", output, input);
      parts.push_back(dense_of(input));
    }
  }
  const auto target = bare(output);
  if (group->world_size == 1) return copied(target, parts.front());
  const auto dense = landing_place(target);
  auto outputs = Tensors{wire_of(*group, dense)};
  auto wires = gives ? std::vector<Tensors>{wires_of(*group, parts)} : std::vector<Tensors>{};
  return start_collective(group,
                          {.name = "scatter",
                           .call = fingerprint_of(Kind::Scatter, output, std::nullopt, root),
                           .travelling = parts,
                           .finish = copy_back(target, dense)},
                          [&](c10d_backend& backend) {
                            c10d::ScatterOptions options;
                            options.rootRank = root;
                            return backend.scatter(outputs, wires, options);
                          });
}

Work all_to_all_single(const GroupPtr& group, const at::Tensor& output, const at::Tensor& input) {
  refuse_if_poisoned(*group);
  check_target(*group, "all_to_all_single", output);
  check_tensor(*group, "all_to_all_single", input);
  check_alike(*group, "all_to_all_single", output, input);
  if (input.numel() % group->world_size != 0) {
    refuse(*group, "all_to_all_single", fmt::format("{} elements cannot be divided evenly", input.numel()),
           fmt::format("their number must be divisible by {}", group->world_size));
  }
  const auto target = bare(output);
  const auto source = dense_of(input);
  if (group->world_size == 1) return copied(target, source);
  const auto dense = landing_place(target);
  auto wire_out = wire_of(*group, dense);
  auto wire_in = wire_of(*group, source);
  std::vector<int64_t> equal_parts;
  return start_collective(group,
                          {.name = "all_to_all_single",
                           .call = fingerprint_of(Kind::AllToAll, input),
                           .travelling = {wire_out, wire_in},
                           .finish = copy_back(target, dense)},
                          [&](c10d_backend& backend) {
                            return backend.alltoall_base(wire_out, wire_in, equal_parts, equal_parts);
                          });
}

Work send(const GroupPtr& group, const at::Tensor& tensor, int to, int tag) {
  refuse_if_poisoned(*group);
  check_tensor(*group, "send", tensor);
  check_peer(*group, "send", to, tag);
  auto wires = Tensors{wire_of(*group, dense_of(tensor))};
  return start_message(
      group, {.name = "send", .call = fingerprint_of(Kind::Send, tensor), .travelling = wires}, to, tag,
      [&](c10d_backend& backend, int wire_tag) { return backend.send(wires, to, wire_tag); });
}

Work recv(const GroupPtr& group, const at::Tensor& tensor, int from, int tag) {
  refuse_if_poisoned(*group);
  check_target(*group, "recv", tensor);
  check_peer(*group, "recv", from, tag);
  const auto target = bare(tensor);
  const auto dense = landing_place(target);
  auto wires = Tensors{wire_of(*group, dense)};
  return start_message(
      group,
      {.name = "recv",
       .call = fingerprint_of(Kind::Recv, tensor),
       .travelling = wires,
       .finish = copy_back(target, dense)},
      from, tag, [&](c10d_backend& backend, int wire_tag) { return backend.recv(wires, from, wire_tag); });
}

Work barrier(const GroupPtr& group) {
  refuse_if_poisoned(*group);
  if (group->world_size == 1) return {};
  return start_collective(group, {.name = "barrier", .call = {}},
                          [&](c10d_backend& backend) { return backend.barrier(); });
}

}  // namespace lockstep::comm
