#include "reducer/launcher.h"

#include <algorithm>
#include <fmt/format.h>

#include <ATen/ATen.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/freed_memory.h"
#include "base/log.h"
#include "comm/checks.h"
#include "comm/control.h"
#include "comm/failure.h"
#include "comm/from_tensors.h"
#include "comm/generation.h"
#include "comm/purpose.h"

namespace lockstep::reducer {

Launcher::Launcher(std::shared_ptr<ProcessGroup> group, const Parameters& parameters, PlanCaps caps,
                   bool as_view, Bucket::Copies copies)
    : group_(std::move(group)),
      parameters_(parameters),
      caps_(caps),
      as_view_(as_view),
      copies_(copies),
      places_(parameters.size()) {}

// ---- The plan

void Launcher::plan(const std::vector<size_t>& order, const std::vector<bool>& sparse) {
  // An earlier attempt may have run out of memory.
  buckets_.clear();
  pending_.clear();
  streams_.clear();
  places_.assign(parameters_.size(), {});
  for (const auto index : order) check_device(parameters_[index]);
  std::vector<PlanItem> items;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& tensor = parameters_[i].tensor;
    items.push_back({.bytes = tensor.nbytes(),
                     .dtype = tensor.scalar_type(),
                     .device = tensor.device(),
                     .sparse = sparse[i]});
  }
  auto caps = caps_;
  if (caps.follow_transport) {
    caps.others = std::min(caps.others, comm::generation_of(*group_)->transport->bucket_bytes());
  }
  for (auto& members : make_plan(items, order, caps)) {
    const bool is_sparse = sparse[members.front()];
    for (size_t slot = 0; slot < members.size(); ++slot) {
      places_[members[slot]] = {.bucket = buckets_.size(), .slot = slot};
    }
    pending_.push_back(members.size());
    // Each bucket takes its gradients in before the next one is created, so that there is never much more
    // than one copy of the gradients.
    buckets_.emplace_back(*group_, parameters_, std::move(members), is_sparse);
    auto& bucket = buckets_.back();
    if (!is_sparse) last_dense_ = buckets_.size() - 1;
    for (size_t slot = 0; slot < bucket.members().size(); ++slot) {
      const auto& tensor = parameters_[bucket.members()[slot]].tensor;
      const auto& gradient = tensor.grad();
      if (gradient.defined() && !gradient.requires_grad() && gradient.is_sparse() == is_sparse) {
        bucket.take_in(slot, tensor, as_view_, 1);
      }
    }
  }
  streams_.resize(buckets_.size());
  launched_.reserve(buckets_.size());
  gather_parameters();
  release_freed_memory();
  planned_for_ = comm::generation_number(*group_);
  timeline_.begin(buckets_.size());
}

// ---- Filling the buckets

void Launcher::begin(int participants, bool takes_part) {
  generation_ = comm::generation_of(*group_);
  mean_ = Mean(participants, generation_->world_size, free_averages());
  takes_part_ = takes_part;
  if (planned_for_ != generation_->generation) follow_generation();
  timeline_.begin(buckets_.size());
}

// Of those that the transport averages for free on all devices of the parameters.
Mean::Dtypes Launcher::free_averages() const {
  const auto& transport = *generation_->transport;
  std::vector<at::Device> devices;
  for (const auto& parameter : parameters_) {
    const auto device = parameter.tensor.device();
    if (std::find(devices.begin(), devices.end(), device) == devices.end()) devices.push_back(device);
  }
  Mean::Dtypes dtypes;
  for (size_t i = 0; i < dtypes.size(); ++i) {
    dtypes[i] = std::all_of(devices.begin(), devices.end(), [&](at::Device device) {
      return transport.averages(static_cast<at::ScalarType>(i), device);
    });
  }
  return dtypes;
}

// The transport of the previous generation may have carried other devices, may not have supplied memory, or
// may have withdrawn it after a failure.
void Launcher::follow_generation() {
  const auto& transport = *generation_->transport;
  for (auto& bucket : buckets_) {
    check_device(parameters_[bucket.members().front()]);
    if (bucket.sparse()) continue;
    const bool withdrawn =
        transport.supplies_memory(bucket.flat().device()) && !transport.supplied(bucket.flat());
    if (withdrawn || !bucket.divides_among(generation_->world_size)) bucket.move_to(*group_, parameters_);
    // Other ranks may share this machine's copy of the parameters now, or it was withdrawn.
    if (bucket.values().defined() &&
        (copies_ == Bucket::Copies::OnePerMachine || !transport.supplied(bucket.values()))) {
      bucket.drop_values();
    }
  }
  planned_for_ = generation_->generation;
  gather_parameters();  // this rank may update another part
}

void Launcher::check_device(const Parameter& parameter) const {
  const auto& group = *comm::generation_of(*group_);
  const auto device = parameter.tensor.device();
  if (group.transport->carries(device)) return;
  const auto refusal = comm::refusal_of(group, device);
  throw UsageError(
      base::compose({.what = fmt::format("gradients on {} cannot be averaged", device.str()),
                     .where = fmt::format("rank {}/{}, '{}'", group.rank, group.world_size, parameter.name),
                     .evidence = refusal.evidence,
                     .hint = refusal.hint}));
}

// A hook does the division itself, and so does an update.
double Launcher::factor_of(const Bucket& bucket) const {
  return bucket.sparse() || hook_ || reduces_in_update(bucket) ? 1
                                                               : mean_.factor(bucket.flat().scalar_type());
}

void Launcher::filled(const Place& place) {
  streams_[place.bucket].note(parameters_[buckets_[place.bucket].members().front()].tensor.device());
  if (--pending_[place.bucket] == 0) timeline_.ready(place.bucket);
}

void Launcher::add(size_t parameter) {
  const auto& place = places_[parameter];
  if (place.bucket == SIZE_MAX) return;
  auto& bucket = buckets_[place.bucket];
  bucket.take_in(place.slot, parameters_[parameter].tensor, as_view_, factor_of(bucket));
  filled(place);
}

void Launcher::add_bystander(size_t parameter) {
  auto& place = places_[parameter];
  if (place.bucket == SIZE_MAX) return;
  auto& bucket = buckets_[place.bucket];
  place.bystander = true;
  place.lent = bucket.lend(place.slot, parameters_[parameter].tensor, factor_of(bucket));
  filled(place);
}

void Launcher::add_nothing() {
  for (size_t index = 0; index < buckets_.size(); ++index) {
    auto& bucket = buckets_[index];
    if (bucket.sparse()) {
      parameters_[bucket.members().front()].tensor.mutable_grad() = at::Tensor();
    } else {
      bucket.flat().zero_();
    }
    pending_[index] = 0;
  }
}

// ---- Launching

template <class Body>
auto Launcher::on_behalf_of(size_t index, Body&& body) {
  const auto describe_purpose = [&] { return purpose_of(index); };
  const comm::Purpose purpose(describe_purpose);
  try {
    return body();
  } catch (const Error&) {
    comm::throw_failure(*generation_);
  }
}

void Launcher::launch_full_buckets() {
  while (launched_.size() < buckets_.size() && pending_[launched_.size()] == 0) launch(launched_.size());
}

void Launcher::launch(size_t index) {
  const Timeline::Exposed exposed(timeline_);
  timeline_.launched(index);
  auto& launched = launched_.emplace_back();
  auto& bucket = buckets_[index];
  streams_[index].join();
  on_behalf_of(index, [&] {
    if (bucket.sparse()) {
      const auto& parameter = parameters_[bucket.members().front()].tensor;
      launched.sparse.emplace(parameter.grad(), parameter);
    } else if (reduces_in_update(bucket)) {
      // Its gradients stay where they are.
    } else if (hook_) {
      auto described = describe(index);
      launched.answer = hook_(described, *group_);
    } else {
      auto request = comm::all_reduce_of(bucket.flat(), mean_.op(bucket.flat().scalar_type()));
      request.keep.push_back(bucket.flat());
      launched.call = generation_->transport->start(std::move(request));
    }
  });
}

// If the transport needs polling, this time counts as exposed: the rank works for the exchange here.
void Launcher::poll() {
  if (first_under_way_ == launched_.size()) return;
  std::optional<Timeline::Exposed> exposed;
  if (generation_->transport->needs_polling()) exposed.emplace(timeline_);
  for (; first_under_way_ < launched_.size(); ++first_under_way_) {
    const auto& call = launched_[first_under_way_].call;
    if (!call) continue;
    if (!call->is_done()) return;
    timeline_.finished(first_under_way_, call->ended().value_or(Timeline::Clock::now()));
  }
}

// ---- Waiting, and the averages

// For all sparse buckets together, so that the ranks exchange their numbers of rows only once.
void Launcher::start_sparse() {
  std::vector<int64_t> rows;
  for (const auto& launched : launched_) {
    if (launched.sparse) rows.push_back(launched.sparse->rows());
  }
  if (rows.empty()) return;
  const auto all_rows =
      comm::control_of(*group_).gather_lists("DDP gradients, rows of sparse gradients", rows);
  size_t next = 0;
  for (size_t index = 0; index < launched_.size(); ++index) {
    auto& sparse = launched_[index].sparse;
    if (!sparse) continue;
    std::vector<int64_t> of_ranks;
    for (const auto& theirs : all_rows) of_ranks.push_back(theirs.at(next));
    on_behalf_of(index, [&] { sparse->start(*group_, std::move(of_ranks)); });
    ++next;
  }
}

// Returns the average of a sparse bucket, which has no memory.
at::Tensor Launcher::wait_for(size_t index) {
  auto& launched = launched_[index];
  auto& flat = buckets_[index].flat();
  if (launched.sparse) return launched.sparse->finish(mean_);
  if (launched.call) {
    launched.call->complete();
    timeline_.finished(index, launched.call->ended().value_or(Timeline::Clock::now()));
    mean_.finish(flat);
    return {};
  }
  if (!launched.answer) return {};
  const auto averaged = launched.answer->wait();
  if (averaged.numel() != flat.numel()) {
    throw UsageError(base::compose({.what = "the communication hook returned a tensor of the wrong size",
                                    .evidence = fmt::format("bucket {} has {} elements, the result {}", index,
                                                            flat.numel(), averaged.numel()),
                                    .hint = "return a tensor with as many elements as the bucket's buffer"}));
  }
  if (averaged.data_ptr() != flat.data_ptr()) flat.copy_(averaged.view({-1}));
  return {};
}

void Launcher::finish(const std::function<std::vector<bool>()>& used_anywhere) {
  const Timeline::Exposed exposed(timeline_);
  std::vector<at::Tensor> sparse_averages(buckets_.size());
  const auto wait_for_all = [&](bool sparse) {
    for (size_t index = 0; index < buckets_.size(); ++index) {
      if (buckets_[index].sparse() != sparse) continue;
      sparse_averages[index] = on_behalf_of(index, [&] { return wait_for(index); });
      timeline_.finished(index);
    }
  };
  // The dense ones first: a wait in the control channel advances none of them.
  wait_for_all(false);
  start_sparse();
  wait_for_all(true);
  const auto used = used_anywhere();
  for (size_t index = 0; index < buckets_.size(); ++index) hand_out(index, sparse_averages[index], used);
  samples_.clear();
  for (size_t member = 0; member < parameters_.size() && takes_part_; ++member) {
    const auto& gradient = parameters_[member].tensor.grad();
    if (comm::is_own(gradient)) samples_.take(member, gradient);
  }
}

void Launcher::hand_out(size_t index, const at::Tensor& sparse_average, const std::vector<bool>& used) {
  auto& bucket = buckets_[index];
  for (size_t slot = 0; slot < bucket.members().size(); ++slot) {
    const auto member = bucket.members()[slot];
    const auto& place = places_[member];
    if (place.bystander && !used[member]) {
      bucket.restore(slot, place.lent);
    } else if (bucket.sparse()) {
      parameters_[member].tensor.mutable_grad() = sparse_average;
    } else if (place.bystander && !launched_[index].call && !launched_[index].answer) {
      // Held: there is no average to hand out.
      bucket.restore(slot, place.lent);
    } else {
      bucket.hand_out(slot, parameters_[member].tensor, as_view_);
    }
  }
}

void Launcher::end_pass() {
  timeline_.end();
  drop();
}

void Launcher::drop() {
  // First: calls in progress hold the connections through which the other ranks learn of a failure.
  launched_.clear();
  first_under_way_ = 0;
  generation_.reset();
  for (size_t index = 0; index < buckets_.size(); ++index) pending_[index] = buckets_[index].members().size();
  for (auto& streams : streams_) streams.forget();
  for (auto& place : places_) {
    place.bystander = false;
    place.lent.reset();
  }
}

// ---- Updates

bool Launcher::holds(const Bucket& bucket) const {
  if (hold_ == Hold::Nothing || bucket.sparse() || !bucket.flat().is_cpu()) return false;
  const auto dtype = bucket.flat().scalar_type();
  return dtype == at::kFloat || (holds_narrow_ && (dtype == at::kBFloat16 || dtype == at::kHalf));
}

bool Launcher::reduces_in_update(const Bucket& bucket) const {
  return hold_ == Hold::Own && !hook_ && holds(bucket);
}

bool Launcher::holds(size_t parameter) const {
  const auto& place = places_[parameter];
  return place.bucket != SIZE_MAX && holds(buckets_[place.bucket]);
}

void Launcher::hold(Hold what, bool narrow) {
  hold_ = what;
  holds_narrow_ = narrow;
  gather_parameters();
  if (hold_ != Hold::Nothing) release_freed_memory();
}

// Gradients and parameters that have moved into buckets have left their old memory.
void Launcher::release_freed_memory() const {
  constexpr size_t kWorthwhile = size_t{64} << 20;
  size_t bytes = 0;
  for (const auto& bucket : buckets_) {
    if (!bucket.sparse() && bucket.flat().is_cpu()) bytes += bucket.flat().nbytes();
  }
  if (bytes >= kWorthwhile) base::release_freed_memory();
}

// Each parameter gets a place of its own.
void Launcher::refuse_overlaps() const {
  struct Extent {
    const std::byte* begin;
    const std::byte* end;
    size_t parameter;
  };
  std::vector<Extent> extents;
  for (const auto& bucket : buckets_) {
    if (!holds(bucket) || bucket.values().defined()) continue;
    for (const auto member : bucket.members()) {
      const auto& tensor = parameters_[member].tensor;
      if (tensor.numel() == 0) continue;
      int64_t last = 0;
      for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
      const auto* const begin = static_cast<const std::byte*>(tensor.data_ptr());
      extents.push_back({begin, begin + (last + 1) * static_cast<int64_t>(tensor.itemsize()), member});
    }
  }
  std::sort(extents.begin(), extents.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].begin >= extents[i - 1].end) continue;
    const auto& group = *comm::generation_of(*group_);
    throw UsageError(
        base::compose({.what = "a ShardedOptimizer cannot update these parameters",
                       .where = fmt::format("rank {}/{}", group.rank, group.world_size),
                       .evidence = fmt::format("'{}' and '{}' are two parameters in the same memory",
                                               parameters_[extents[i - 1].parameter].name,
                                               parameters_[extents[i].parameter].name),
                       .hint = "register one tensor under both names, or use LibTorch's optimizer"}));
  }
}

void Launcher::gather_parameters() {
  laid_out_ = false;
  refuse_overlaps();
  for (auto& bucket : buckets_) {
    if (holds(bucket)) bucket.gather_parameters(*group_, parameters_, copies_);
  }
  note_own_gradients();
}

void Launcher::note_own_gradients() {
  own_.clear();
  for (const auto& bucket : buckets_) {
    if (reduces_in_update(bucket)) own_.push_back(std::make_unique<comm::OwnGradients>(bucket.flat()));
  }
}

// LibTorch's functions that clip cannot know that gradients are not averages.
void Launcher::warn_of_changed_gradients() {
  if (warned_of_changes_) return;
  const auto changed = samples_.changed(
      [this](size_t member) -> const at::Tensor& { return parameters_[member].tensor.grad(); });
  if (changed == SIZE_MAX) return;
  warned_of_changes_ = true;
  base::log_warn(
      "{}", base::compose({.what = fmt::format("the gradient of '{}' was changed between backward and step",
                                               parameters_[changed].name),
                           .evidence = "with a ShardedOptimizer, gradients are averaged in its step; before, "
                                       "they are this rank's own",
                           .hint = "clip with optimizer.clip_grad_norm(max_norm), or construct it with "
                                   "{.average_gradients = true}. Multiplying by a number that is the same "
                                   "on all ranks is correct"}));
}

// With a hook, or averages: all ranks have the same values, of which the largest is one of them.
comm::Request Launcher::update_of(Bucket& bucket, bool measures) const {
  auto request =
      comm::all_reduce_of(bucket.flat(), reduces_in_update(bucket) ? ReduceOp::Avg : ReduceOp::Max);
  request.name = "update";
  // The ranks must not mix the two: gradients would become parameters.
  request.root = measures ? comm::kMeasures : comm::kUpdates;
  request.takes_together = copies_ == Bucket::Copies::OnePerMachine;
  request.participants = mean_.participants();
  request.take[0] = {static_cast<std::byte*>(bucket.values().data_ptr()),
                     measures ? 0 : bucket.values().nbytes()};
  request.keep = {bucket.flat(), bucket.values()};
  return request;
}

Held Launcher::describe_held(const Bucket& bucket, const std::vector<bool>& used,
                             const comm::Request& request, bool replaced) const {
  Held held{.values = bucket.values(),
            .common = request.takes_together,
            .replaced = replaced,
            .slots = {},
            .mine = comm::updated_ranges(*generation_, request)};
  for (size_t slot = 0; slot < bucket.members().size(); ++slot) {
    const auto member = bucket.members()[slot];
    held.slots.push_back({member, bucket.range(slot), used[member]});
  }
  return held;
}

template <class Exchange>
void Launcher::for_each_held(const std::vector<bool>& used, bool measures, Exchange&& exchange) {
  generation_ = comm::generation_of(*group_);
  const auto forget = std::shared_ptr<void>(nullptr, [this](void*) { generation_.reset(); });
  if (planned_for_ != generation_->generation) follow_generation();
  warn_of_changed_gradients();
  std::vector<size_t> indices;
  std::vector<comm::Request> requests;
  std::vector<Held> held;
  for (size_t index = 0; index < buckets_.size(); ++index) {
    auto& bucket = buckets_[index];
    if (!holds(bucket)) continue;
    // What the user has replaced since the pass, or since the last update.
    for (size_t slot = 0; slot < bucket.members().size() && takes_part_; ++slot) {
      const auto member = bucket.members()[slot];
      if (used[member]) bucket.take_in(slot, parameters_[member].tensor, as_view_, 1);
    }
    const bool replaced = bucket.gather_parameters(*group_, parameters_, copies_);
    indices.push_back(index);
    requests.push_back(update_of(bucket, measures));
    held.push_back(describe_held(bucket, used, requests.back(), replaced));
  }
  exchange(held, [&](size_t i, comm::Transform& transform) {
    on_behalf_of(indices[i], [&] { comm::update(*generation_, requests[i], transform); });
  });
}

void Launcher::update(Updater& updater, const std::vector<bool>& used) {
  for_each_held(used, /*measures=*/false, [&](const std::vector<Held>& held, const auto& run) {
    if (!std::exchange(laid_out_, true)) updater.laid_out(held);
    for (size_t i = 0; i < held.size(); ++i) {
      run(i, updater.transform(i, held[i]));
      for (const auto& slot : held[i].slots) {
        if (slot.used) parameters_[slot.parameter].tensor.unsafeGetTensorImpl()->bump_version();
      }
    }
  });
}

void Launcher::measure(const std::function<comm::Transform&(const Held&)>& transform_of,
                       const std::vector<bool>& used) {
  for_each_held(used, /*measures=*/true, [&](const std::vector<Held>& held, const auto& run) {
    for (size_t i = 0; i < held.size(); ++i) run(i, transform_of(held[i]));
  });
}

// ---- Descriptions and statistics

GradBucket Launcher::describe(size_t index) const {
  const auto& bucket = buckets_[index];
  GradBucket described{.index = index,
                       .is_last = index == last_dense_,
                       .buffer = bucket.flat(),
                       .takes_part = takes_part_,
                       .participants = mean_.participants(),
                       .mean = mean_};
  for (size_t slot = 0; slot < bucket.members().size(); ++slot) {
    const auto& parameter = parameters_[bucket.members()[slot]];
    described.gradients.push_back(bucket.view(slot));
    described.parameters.push_back(parameter.tensor);
    described.names.push_back(parameter.name);
  }
  return described;
}

// "DDP gradients, bucket 0 (fc.weight, fc.bias, …)"
std::string Launcher::purpose_of(size_t index) const {
  constexpr size_t kShown = 2;
  std::string names;
  const auto& members = buckets_[index].members();
  for (size_t slot = 0; slot < std::min(members.size(), kShown); ++slot) {
    names += (slot == 0 ? "" : ", ") + parameters_[members[slot]].name;
  }
  return fmt::format("DDP gradients, bucket {} ({}{})", index, names, members.size() > kShown ? ", …" : "");
}

DdpStats Launcher::stats() const {
  auto stats = timeline_.stats();
  stats.buckets.resize(buckets_.size());
  for (size_t index = 0; index < buckets_.size(); ++index) {
    const auto& bucket = buckets_[index];
    auto& reported = stats.buckets[index];
    for (const auto member : bucket.members()) reported.parameters.push_back(parameters_[member].name);
    reported.dtype = c10::toString(parameters_[bucket.members().front()].tensor.scalar_type());
    reported.bytes = bucket.sparse() ? 0 : static_cast<int64_t>(bucket.flat().nbytes());
    stats.bytes += reported.bytes;
  }
  return stats;
}

}  // namespace lockstep::reducer
