// The backend's collectives that gather or distribute parts: all-gather, gather, scatter, reduce-scatter and
// all-to-all.
#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "c10d_face/arguments.h"
#include "c10d_face/backend.h"
#include "c10d_face/from_c10d.h"
#include "comm/dense.h"
#include "comm/flatten.h"
#include "comm/from_tensors.h"

namespace lockstep::c10d_face {

namespace {

using c10d::OpType;
using comm::all_gather_of;
using comm::all_to_all_of;
using comm::bring_home;
using comm::dense_of;
using comm::gather_of;
using comm::landing_place;
using comm::overlap;
using comm::overlap_askew;
using comm::reduce_scatter_of;
using comm::scatter_of;
using comm::Tensors;

Tensors landing_places(const Tensors& targets) {
  Tensors places;
  for (const auto& target : targets) places.push_back(landing_place(target));
  return places;
}

// Copies the input if it overlaps the memory where another rank's part is written. It may be the memory of
// this rank's own part.
void avoid_overlap(at::Tensor& wire, const Tensors& landed, int rank) {
  for (size_t i = 0; i < landed.size(); ++i) {
    const bool own = static_cast<int>(i) == rank && wire.data_ptr() == landed[i].data_ptr();
    if (!own && overlap(wire, landed[i])) wire = wire.clone();
  }
}

void bring_home_all(const Tensors& targets, const Tensors& landed) {
  for (size_t i = 0; i < targets.size(); ++i) bring_home(targets[i], landed[i]);
}

std::vector<int64_t> counts_of(const std::vector<int64_t>& splits, const at::Tensor& tensor, int world_size) {
  c10d::checkSplitSizes(splits, tensor, world_size);
  const int64_t rows = tensor.size(0);
  const int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
  std::vector<int64_t> counts;
  for (int rank = 0; rank < world_size; ++rank) {
    counts.push_back(row * (splits.empty() ? rows / world_size : splits[rank]));
  }
  return counts;
}

}  // namespace

Backend::WorkPtr Backend::allgather(Lists& outputs, List& inputs, const c10d::AllgatherOptions& options) {
  const Arguments check("allgather", *engine_);
  if (inputs.empty()) check.reject("requires non-empty input tensor list");
  if (inputs.size() != outputs.size())
    check.reject("requires input/output tensor lists to have the same length");
  const size_t expected = inputs.size() * size_;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].size() == expected) continue;
    check.reject(fmt::format("invalid output tensor list at index {} (expected length {}, got {})", i,
                             expected, outputs[i].size()));
  }
  check.dense(inputs);
  check.alike(inputs[0], inputs);
  for (const auto& list : outputs) {
    check.dense(list);
    check.alike(inputs[0], list);
  }
  WorkInfo info{.type = OpType::ALLGATHER, .inputs = inputs, .outputs = outputs};
  if (inputs.size() == 1) {
    auto wire = dense_of(inputs[0]);
    const auto landed = landing_places(outputs[0]);
    avoid_overlap(wire, landed, rank_);
    info.keep_alive = landed;
    info.keep_alive.push_back(wire);
    info.finish = [targets = outputs[0], landed] { bring_home_all(targets, landed); };
    return start(all_gather_of(landed, wire, size_), std::move(info), options.timeout);
  }
  const auto wire = comm::flatten(inputs);
  const auto all = at::empty({size_ * wire.numel()}, wire.options());
  info.keep_alive = {wire, all};
  info.finish = [outputs, all] {
    for (const auto& list : outputs) comm::unflatten(all, list);
  };
  return start(all_gather_of(all, wire, size_), std::move(info), options.timeout);
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions& options) {
  const Arguments check("_allgather_base", *engine_);
  check.dense({output, input});
  check.same_type(input, output);
  if (output.numel() != input.numel() * size_) {
    check.reject("output tensor size must be equal to world_size times input tensor size");
  }
  auto wire = dense_of(input);
  const auto landed = landing_place(output);
  if (overlap_askew(landed, wire, rank_)) wire = wire.clone();
  return start(all_gather_of(landed, wire, size_),
               {.type = OpType::_ALLGATHER_BASE,
                .inputs = {input},
                .outputs = {{output}},
                .keep_alive = {wire, landed},
                .finish = [output, landed] { bring_home(output, landed); }},
               options.timeout);
}

Backend::WorkPtr Backend::allgather_coalesced(Lists& outputs, List& inputs,
                                              const c10d::AllgatherOptions& options) {
  const Arguments check("allgather_coalesced", *engine_);
  if (inputs.empty()) check.reject("requires non-empty input tensor list");
  if (outputs.size() != static_cast<size_t>(size_))
    check.reject("output lists should be equal to world size");
  check.same_type(inputs[0], inputs);
  check.dense(inputs);
  for (const auto& list : outputs) {
    if (list.size() != inputs.size()) {
      check.reject(
          fmt::format("invalid output size: (expected length {}, got {})", inputs.size(), list.size()));
    }
    check.dense(list);
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].sizes() != inputs[i].sizes()) {
        check.reject(fmt::format("invalid size of output tensor at index {}", i));
      }
    }
    check.same_type(inputs[0], list);
  }
  const auto wire = comm::flatten(inputs);
  const auto all = at::empty({size_ * wire.numel()}, wire.options());
  return start(all_gather_of(all, wire, size_),
               {.type = OpType::ALLGATHER_COALESCED,
                .inputs = inputs,
                .outputs = outputs,
                .keep_alive = {wire, all},
                .finish =
                    [outputs, all, each = wire.numel()] {
                      for (size_t i = 0; i < outputs.size(); ++i) {
                        comm::unflatten(all.narrow(0, static_cast<int64_t>(i) * each, each), outputs[i]);
                      }
                    }},
               options.timeout);
}

Backend::WorkPtr Backend::gather(Lists& outputs, List& inputs, const c10d::GatherOptions& options) {
  const Arguments check("gather", *engine_);
  check.root(options.rootRank);
  check.single_input(inputs);
  check.dense(inputs);
  const int root = static_cast<int>(options.rootRank);
  if (rank_ == root) {
    if (outputs.size() != 1) {
      check.reject(
          fmt::format("requires a single-element output list containing a list with {} tensors.", size_));
    }
    if (outputs[0].size() != static_cast<size_t>(size_)) {
      check.reject(
          fmt::format("Incorrect output list size {}. Output list size should be {}, same as size of the "
                      "process group.",
                      outputs[0].size(), size_));
    }
    check.dense(outputs[0]);
    check.alike(inputs[0], outputs[0]);
  } else if (!outputs.empty()) {
    check.reject("requires empty output on non-root");
  }
  const auto targets = rank_ == root ? outputs[0] : List{};
  auto wire = dense_of(inputs[0]);
  const auto landed = landing_places(targets);
  avoid_overlap(wire, landed, rank_);
  auto keep_alive = landed;
  keep_alive.push_back(wire);
  return start(gather_of(landed, wire, root),
               {.type = OpType::GATHER,
                .inputs = inputs,
                .outputs = outputs,
                .keep_alive = std::move(keep_alive),
                .finish = [targets, landed] { bring_home_all(targets, landed); }},
               options.timeout);
}

// On other ranks than the root, c10d passes an empty tensor as output.
Backend::WorkPtr Backend::gather_of_one(at::Tensor& output, at::Tensor& input,
                                        const c10d::GatherOptions& options) {
  const Arguments check("gather_single", *engine_);
  check.root(options.rootRank);
  check.dense({input});
  const int root = static_cast<int>(options.rootRank);
  auto wire = dense_of(input);
  WorkInfo info{.type = OpType::GATHER, .inputs = {input}};
  List parts;
  if (rank_ == root) {
    check.dense({output});
    check.same_type(input, {output});
    if (output.numel() != input.numel() * size_) {
      check.reject("output tensor size must be equal to world_size times input tensor size");
    }
    const auto landed = landing_place(output);
    parts = landed.view({size_, input.numel()}).unbind();
    avoid_overlap(wire, parts, rank_);
    info.outputs = {{output}};
    info.keep_alive = {landed};
    info.finish = [output, landed] { bring_home(output, landed); };
  }
  info.keep_alive.push_back(wire);
  return start(gather_of(parts, wire, root), std::move(info), options.timeout);
}

Backend::WorkPtr Backend::scatter(List& outputs, Lists& inputs, const c10d::ScatterOptions& options) {
  const Arguments check("scatter", *engine_);
  check.root(options.rootRank);
  check.single_output(outputs);
  check.dense(outputs);
  const int root = static_cast<int>(options.rootRank);
  if (rank_ == root) {
    if (inputs.size() != 1) {
      check.reject(
          fmt::format("requires a single-element input list containing a list with {} tensors", size_));
    }
    if (inputs[0].size() != static_cast<size_t>(size_)) {
      check.reject(
          fmt::format("Incorrect input list size {}. Input list size should be {}, same as size of the "
                      "process group.",
                      inputs[0].size(), size_));
    }
    check.dense(inputs[0]);
    check.alike(outputs[0], inputs[0]);
  } else if (!inputs.empty()) {
    check.reject("requires empty input on non-root");
  }
  const auto target = outputs[0];
  const auto landed = landing_place(target);
  auto keep_alive = rank_ == root ? dense_all(inputs[0]) : List{};
  auto request = scatter_of(landed, keep_alive, root);
  keep_alive.push_back(landed);
  return start(std::move(request),
               {.type = OpType::SCATTER,
                .inputs = rank_ == root ? inputs[0] : List{},
                .outputs = {outputs},
                .keep_alive = std::move(keep_alive),
                .finish = [target, landed] { bring_home(target, landed); }},
               options.timeout);
}

Backend::WorkPtr Backend::reduce_scatter(List& outputs, Lists& inputs,
                                         const c10d::ReduceScatterOptions& options) {
  const Arguments check("reduce_scatter", *engine_);
  check.single_output(outputs);
  if (inputs.size() != 1) {
    check.reject(
        fmt::format("requires a single-element input list containing a list with {} tensors", size_));
  }
  if (inputs[0].size() != static_cast<size_t>(size_)) {
    check.reject(fmt::format("invalid input tensor list at index 0 (expected length {}, got {})", size_,
                             inputs[0].size()));
  }
  check.dense(outputs);
  check.dense(inputs[0]);
  check.alike(outputs[0], inputs[0]);
  const auto target = outputs[0];
  auto landed = landing_place(target);
  auto keep_alive = dense_all(inputs[0]);
  for (const auto& input : keep_alive) {
    if (overlap(input, landed)) landed = at::empty_like(landed);
  }
  auto request = reduce_scatter_of(landed, keep_alive, check.reduction(options.reduceOp), size_);
  keep_alive.push_back(landed);
  return start(std::move(request),
               {.type = OpType::REDUCE_SCATTER,
                .inputs = inputs[0],
                .outputs = {outputs},
                .keep_alive = std::move(keep_alive),
                .finish = [target, landed] { bring_home(target, landed); }},
               options.timeout);
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& options) {
  const Arguments check("_reduce_scatter_base", *engine_);
  check.dense({output, input});
  check.same_type(input, output);
  if (input.numel() != output.numel() * size_) {
    check.reject("input tensor must be the same size as output size times world size");
  }
  const auto wire = dense_of(input);
  auto landed = landing_place(output);
  if (overlap_askew(wire, landed, rank_)) landed = at::empty_like(landed);
  return start(reduce_scatter_of(landed, wire, check.reduction(options.reduceOp), size_),
               {.type = OpType::_REDUCE_SCATTER_BASE,
                .inputs = {input},
                .outputs = {{output}},
                .keep_alive = {wire, landed},
                .finish = [output, landed] { bring_home(output, landed); }},
               options.timeout);
}

Backend::WorkPtr Backend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                        std::vector<int64_t>& output_splits,
                                        std::vector<int64_t>& input_splits,
                                        const c10d::AllToAllOptions& options) {
  const Arguments check("alltoall_base", *engine_);
  check.dense({output, input});
  check.same_type(input, output);
  const auto output_counts = counts_of(output_splits, output, size_);
  const auto input_counts = counts_of(input_splits, input, size_);
  auto wire = dense_of(input);
  const auto landed = landing_place(output);
  // Some pieces are written while others are still being read.
  if (overlap(wire, landed)) wire = wire.clone();
  auto request = all_to_all_of(landed, wire, output_counts, input_counts);
  request.any_sizes = true;  // whatever the splits of this rank are
  return start(std::move(request),
               {.type = OpType::ALLTOALL_BASE,
                .inputs = {input},
                .outputs = {{output}},
                .keep_alive = {wire, landed},
                .finish = [output, landed] { bring_home(output, landed); }},
               options.timeout);
}

Backend::WorkPtr Backend::alltoall(List& outputs, List& inputs, const c10d::AllToAllOptions& options) {
  const Arguments check("alltoall", *engine_);
  if (outputs.size() != static_cast<size_t>(size_))
    check.reject("output lists should be equal to world size");
  if (inputs.size() != static_cast<size_t>(size_)) check.reject("input lists should be equal to world size");
  check.dense(inputs);
  check.dense(outputs);
  check.same_type(inputs[0], inputs);
  check.same_type(inputs[0], outputs);
  auto wires = dense_all(inputs);
  const auto landed = landing_places(outputs);
  for (auto& wire : wires) {
    for (const auto& place : landed) {
      if (overlap(wire, place)) wire = wire.clone();
    }
  }
  auto keep_alive = landed;
  keep_alive.insert(keep_alive.end(), wires.begin(), wires.end());
  return start(all_to_all_of(landed, wires),
               {.type = OpType::ALLTOALL,
                .inputs = inputs,
                .outputs = {outputs},
                .keep_alive = std::move(keep_alive),
                .finish = [outputs, landed] { bring_home_all(outputs, landed); }},
               options.timeout);
}

}  // namespace lockstep::c10d_face
