#include "reducer/reducer.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "comm/purpose.h"
#include "reducer/diagnose.h"

namespace lockstep::reducer {

std::shared_ptr<Reducer> Reducer::make(std::shared_ptr<ProcessGroup> group, Parameters parameters,
                                       Options options, Owner& owner) {
  std::shared_ptr<Reducer> reducer(new Reducer(std::move(group), std::move(parameters), options, owner));
  for (size_t index = 0; index < reducer->parameters_.size(); ++index) {
    // The hooks go with the reducer, so they can do with its address.
    auto fire = [raw = reducer.get(), index] { raw->on_gradient(index); };
    reducer->hooks_.emplace_back(reducer->parameters_[index].tensor, std::move(fire));
    reducer->nodes_.emplace(reducer->hooks_.back().node(), index);
  }
  return reducer;
}

Reducer::Reducer(std::shared_ptr<ProcessGroup> group, Parameters parameters, Options options, Owner& owner)
    : group_(std::move(group)),
      parameters_(std::move(parameters)),
      options_(options),
      owner_(owner),
      states_(parameters_.size()),
      counting_(options.static_graph),
      expected_(parameters_.size(), 1),
      places_(parameters_.size()) {
  for (const auto& parameter : parameters_) sparse_.push_back(parameter.sparse);
}

Reducer::~Reducer() = default;

template <class Body>
void Reducer::guarded(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    abandon(error);
    throw;
  } catch (const std::exception& error) {
    abandon(Error(error.what()));
    throw;
  } catch (...) {
    // Autograd knows only std::exceptions.
    const auto error = no_exception(*group_);
    abandon(error);
    throw error;
  }
}

void Reducer::abandon(const Error& why) {
  // First: what is under way holds on to the connections by which the others are told.
  flights_.clear();
  group_->poison(why);
  pass_.reset();
  reset();
}

// ---- Forward

void Reducer::refuse_if_interrupted() {
  const std::lock_guard lock(mutex_);
  guarded([&] { drop_interrupted_pass(); });
}

void Reducer::drop_interrupted_pass() {
  if (!pass_ || !pass_->alive.expired()) return;
  if (pass_->sync) throw interrupted(*group_);
  for (auto& state : states_) state.fired = 0;
  pass_.reset();
}

bool Reducer::fits_parameters() const {
  return std::all_of(parameters_.begin(), parameters_.end(), [](const Parameter& parameter) {
    return parameter.tensor.scalar_type() == parameter.dtype && parameter.tensor.device() == parameter.device;
  });
}

void Reducer::expect(bool sync, Turn turn, std::vector<at::Tensor> outputs) {
  // A hook on a leaf would stay there for ever.
  std::erase_if(outputs, [](const at::Tensor& output) {
    return !output.defined() || !output.requires_grad() || output.is_leaf();
  });
  auto forward = std::make_shared<Forward>();
  forward->sync = sync;
  forward->turn = turn;
  const bool walk = options_.find_unused && !options_.static_graph && learned_ && !outputs.empty();
  if (walk) forward->reach = reachable(outputs, nodes_);

  const std::lock_guard lock(mutex_);
  unwatched_ = outputs.empty() ? std::optional(*forward) : std::nullopt;
  std::erase_if(open_forwards_, [](const auto& open) { return open.expired(); });
  open_forwards_.push_back(forward);
  for (const auto& output : outputs) {
    output.register_hook([self = weak_from_this(), forward](const at::Tensor&) {
      const auto reducer = self.lock();
      if (!reducer || !compat::accumulates_into(reducer->nodes_)) return;
      const std::lock_guard begin_lock(reducer->mutex_);
      reducer->guarded([&] { reducer->begin(*forward); });
    });
  }
}

// What backward passes through the outputs of all forwards that are still there may reach; nothing if that is
// not known of one of them. Each is kept by the hooks on its outputs.
std::optional<Flags> Reducer::reach_of_open_forwards() {
  Flags reach(parameters_.size());
  for (const auto& open : open_forwards_) {
    const auto forward = open.lock();
    if (!forward) continue;
    if (forward->reach.empty()) return std::nullopt;
    for (size_t i = 0; i < reach.size(); ++i) reach[i] = reach[i] || forward->reach[i];
  }
  return reach;
}

// ---- Backward

void Reducer::begin(const Forward& forward) {
  drop_interrupted_pass();
  const bool was_sync = pass_ && pass_->sync;
  if (!pass_) {
    pass_ = Pass{};
    const auto alive = std::make_shared<int>(0);
    pass_->alive = alive;
    compat::at_end_of_backward([self = shared_from_this(), alive] { self->end(); });
    pass_->bypasses = forward.bypasses;
  }
  pass_->bypasses = pass_->bypasses && forward.bypasses;
  if (!forward.sync || was_sync) return;
  pass_->sync = true;
  pass_->turn = forward.turn;
  timeline_.begin(buckets_.size());
  if (!learned_) return;

  const at::NoGradGuard no_grad;
  const auto reach = options_.find_unused && !forward.bypasses ? reach_of_open_forwards() : std::nullopt;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    auto& state = states_[i];
    if (state.ready || state.fired > 0) continue;
    const bool unreachable = reach && !(*reach)[i];
    const bool none_counted = !counting_ && expected_[i] == 0;
    if (parameters_[i].tensor.requires_grad() && !none_counted && !unreachable) continue;
    // Gradients from passes that were not synchronised travel now.
    if (state.used) {
      set_ready(i);
    } else {
      set_bystander(i);
    }
  }
}

// By a gradient. If a hook follows in the same pass, the gradient came from beside the outputs: then it is a
// pass of the wrapper's all the same, and synchronised if either says so. Once too often does no harm: an
// average of averages is the average.
void Reducer::begin_unannounced() {
  if (const auto forward = std::exchange(unwatched_, std::nullopt)) {
    begin(*forward);
  } else {
    begin({.sync = owner_.syncs_bypassed(),
           .turn = {.participants = group_->world_size(), .leader = 0},
           .bypasses = true});
  }
}

void Reducer::on_gradient(size_t index) {
  const std::lock_guard lock(mutex_);
  guarded([&] {
    if (!pass_ || pass_->alive.expired()) begin_unannounced();
    auto& state = states_[index];
    ++state.fired;
    state.used = true;
    if (pass_->sync) take_on(index);
  });
}

void Reducer::take_on(size_t index) {
  const auto& state = states_[index];
  const auto& name = parameters_[index].name;
  if (!learned_ && state.fired == 1) ready_order_.push_back(index);
  if (!learned_ || counting_) return;
  if (state.fired > expected_[index]) throw one_too_many(*group_, name, options_.static_graph);
  if (state.bystander) throw used_elsewhere(*group_, name);
  if (state.fired == expected_[index]) {
    set_ready(index);
    launch_what_is_ready();
  }
  // A backend without a thread of its own gets on while this rank computes.
  for (const auto& flight : flights_) {
    if (!flight.is_done()) break;
  }
}

void Reducer::check_gradient(size_t index) {
  const auto& parameter = parameters_[index];
  const auto& gradient = parameter.tensor.grad();
  if (!gradient.defined()) return;
  if (gradient.requires_grad()) throw with_graph(*group_, parameter.name);
  if (gradient.is_sparse() != sparse_[index]) {
    throw unexpected_layout(*group_, parameter.name, gradient.is_sparse());
  }
}

void Reducer::set_ready(size_t index) {
  check_gradient(index);
  const auto& place = places_[index];
  const at::NoGradGuard no_grad;
  if (place.bucket == SIZE_MAX) return;
  auto& bucket = buckets_[place.bucket];
  take_in(bucket, place.slot, parameters_[index].tensor, options_.as_view, scale_of(bucket));
  ready(index);
}

void Reducer::set_bystander(size_t index) {
  check_gradient(index);
  const auto& place = places_[index];
  if (place.bucket == SIZE_MAX) return;
  auto& bucket = buckets_[place.bucket];
  states_[index].bystander.emplace(bucket, place.slot, parameters_[index].tensor, scale_of(bucket));
  ready(index);
}

// Gloo can only sum. To divide afterwards would be another pass over memory that is no longer in the caches.
// Narrow types would lose bits before the sum; they are left to the group.
double Reducer::scale_of(const Bucket& bucket) const {
  if (bucket.sparse() || hook_ || group_->backend() != "gloo") return 1;
  const auto dtype = bucket.flat().scalar_type();
  return dtype == at::kFloat || dtype == at::kDouble ? 1.0 / pass_->turn.participants : 1;
}

void Reducer::ready(size_t index) {
  states_[index].ready = true;
  const auto bucket = places_[index].bucket;
  if (--pending_[bucket] == 0) timeline_.ready(bucket);
}

void Reducer::launch_what_is_ready() {
  while (flights_.size() < buckets_.size() && pending_[flights_.size()] == 0) {
    const Timeline::Exposed exposed(timeline_);
    const size_t index = flights_.size();
    timeline_.launched(index);
    flights_.emplace_back(buckets_[index], Flight::Terms{.group = *group_,
                                                         .parameters = parameters_,
                                                         .hook = hook_,
                                                         .participants = pass_->turn.participants,
                                                         .scaled = scale_of(buckets_[index]) != 1,
                                                         .takes_part = !pass_->shadows,
                                                         .index = index,
                                                         .is_last = index == last_dense_});
  }
}

// ---- The end of a pass

void Reducer::end() {
  const std::lock_guard lock(mutex_);
  if (!pass_) return;
  const bool bypassed = pass_->bypasses;
  if (!pass_->sync) {
    for (auto& state : states_) state.fired = 0;
    pass_.reset();
    if (bypassed) guarded([&] { owner_.after_pass(false, true); });
    return;
  }
  guarded([&] {
    const at::NoGradGuard no_grad;
    if (!learned_) learn(pass_->turn);
    if (std::exchange(counting_, false)) {
      for (size_t i = 0; i < parameters_.size(); ++i) expected_[i] = states_[i].fired;
    }
    settle_the_rest();
    launch_what_is_ready();
    finish();
  });
  timeline_.end();
  timeline_.log();
  pass_.reset();
  reset();
  guarded([&] { owner_.after_pass(true, bypassed); });
}

void Reducer::settle_the_rest() {
  std::vector<std::string> missing;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& state = states_[i];
    if (state.ready) continue;
    if (places_[i].bucket == SIZE_MAX) {
      if (state.used) throw one_too_many(*group_, parameters_[i].name, true);
      continue;
    }
    const bool complete = state.fired == expected_[i] && state.fired > 0;
    // A static graph uses what it used in the first pass, whatever earlier passes have left.
    const bool left_over = state.used && state.fired == 0 && !(options_.static_graph && expected_[i] > 0);
    if (complete || left_over) {
      set_ready(i);
    } else if ((options_.find_unused && !options_.static_graph) || expected_[i] == 0 ||
               !parameters_[i].tensor.requires_grad()) {
      set_bystander(i);
    } else {
      missing.push_back(parameters_[i].name);
    }
  }
  if (!missing.empty()) throw got_none(missing, options_.static_graph);
}

UsageError Reducer::got_none(const std::vector<std::string>& names, bool static_graph) const {
  const auto replaced = owner_.replaced(names);
  return replaced.empty() ? no_gradient(*group_, names, static_graph)
                          : replaced_parameters(*group_, replaced);
}

void Reducer::finish() {
  const Timeline::Exposed exposed(timeline_);
  const auto used = used_anywhere();
  for (size_t index = 0; index < buckets_.size(); ++index) {
    const auto sparse_average = flights_[index].finish();
    timeline_.finished(index);
    auto& bucket = buckets_[index];
    for (size_t slot = 0; slot < bucket.members().size(); ++slot) {
      const auto member = bucket.members()[slot];
      const auto& bystander = states_[member].bystander;
      if (bystander && !used[member]) {
        bystander->put_back(bucket, slot);
      } else if (bucket.sparse()) {
        parameters_[member].tensor.mutable_grad() = sparse_average;
      } else {
        hand_out(bucket, slot, parameters_[member].tensor, options_.as_view);
      }
    }
  }
}

// Parameters whose average is to be taken on by those who have not used them themselves.
std::vector<bool> Reducer::used_anywhere() {
  std::vector<bool> used(parameters_.size());
  if (options_.static_graph) {
    for (size_t i = 0; i < used.size(); ++i) used[i] = parameters_[i].tensor.requires_grad();
    return used;
  }
  if (!options_.find_unused) return used;
  const comm::Purpose purpose("DDP gradients, unused parameters");
  auto flags = at::zeros({static_cast<int64_t>(used.size())}, at::kByte);
  for (size_t i = 0; i < used.size(); ++i) flags.data_ptr<uint8_t>()[i] = states_[i].used ? 1 : 0;
  group_->all_reduce(flags, ReduceOp::Max);
  for (size_t i = 0; i < used.size(); ++i) used[i] = flags.data_ptr<uint8_t>()[i] != 0;
  return used;
}

void Reducer::reset() {
  flights_.clear();
  for (auto& state : states_) state = {};
  for (size_t index = 0; index < buckets_.size(); ++index) pending_[index] = buckets_[index].members().size();
}

// ---- The first pass

void Reducer::learn(const Turn& turn) {
  const auto count = parameters_.size();
  Learned seen;
  // Without a static graph the first pass may not have seen all.
  const bool observed = !options_.find_unused || options_.static_graph;
  seen.order = complete_order(observed ? ready_order_ : std::vector<size_t>{}, count);
  std::vector<std::string> missing;
  for (size_t i = 0; i < count; ++i) {
    const auto& tensor = parameters_[i].tensor;
    seen.sparse.push_back(sparse_[i] || (tensor.grad().defined() && tensor.grad().is_sparse()));
    seen.used.push_back(states_[i].fired > 0 || states_[i].used);
    if (!seen.used[i] && tensor.requires_grad() && !options_.find_unused && !options_.static_graph) {
      missing.push_back(parameters_[i].name);
    }
  }
  if (!missing.empty()) throw got_none(missing, false);
  for (size_t i = 0; i < count && !options_.static_graph; ++i) {
    if (states_[i].fired > 1) throw one_too_many(*group_, parameters_[i].name, false);
  }
  const comm::Purpose purpose("DDP gradients, plan of the buckets");
  adopt(agree(*group_, turn.leader, seen));
  ready_order_.clear();
  timeline_.begin(buckets_.size());
}

void Reducer::adopt(const Learned& agreed) {
  sparse_ = agreed.sparse;
  std::vector<size_t> order;
  for (const auto index : agreed.order) {
    if (!options_.static_graph || agreed.used[index]) order.push_back(index);
  }
  make_buckets(order);
  learned_ = true;
}

void Reducer::make_buckets(const std::vector<size_t>& order) {
  std::vector<PlanItem> items;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& tensor = parameters_[i].tensor;
    items.push_back({.bytes = tensor.nbytes(),
                     .dtype = tensor.scalar_type(),
                     .device = tensor.device(),
                     .sparse = sparse_[i]});
  }
  for (auto& members : make_plan(items, order, options_.caps)) {
    const bool sparse = sparse_[members.front()];
    for (size_t slot = 0; slot < members.size(); ++slot) places_[members[slot]] = {buckets_.size(), slot};
    pending_.push_back(members.size());
    // Each takes its gradients in before the next is made, so that there is never much more than one copy.
    buckets_.emplace_back(*group_, parameters_, std::move(members), sparse);
    auto& bucket = buckets_.back();
    if (!sparse) last_dense_ = buckets_.size() - 1;
    for (size_t slot = 0; slot < bucket.members().size(); ++slot) {
      const auto& tensor = parameters_[bucket.members()[slot]].tensor;
      if (tensor.grad().defined() && !tensor.grad().requires_grad() && tensor.grad().is_sparse() == sparse) {
        take_in(bucket, slot, tensor, options_.as_view, 1);
      }
    }
  }
  flights_.reserve(buckets_.size());
}

// ---- Passes of others

void Reducer::shadow(Turn turn) {
  const std::lock_guard lock(mutex_);
  guarded([&] {
    const at::NoGradGuard no_grad;
    if (!learned_) {
      Learned seen;
      seen.order = complete_order({}, parameters_.size());
      seen.sparse = sparse_;
      seen.used.assign(parameters_.size(), false);
      adopt(agree(*group_, turn.leader, seen));
    }
    pass_ = Pass{.sync = true, .shadows = true, .turn = turn};
    timeline_.begin(buckets_.size());
    for (size_t index = 0; index < buckets_.size(); ++index) {
      auto& bucket = buckets_[index];
      if (bucket.sparse()) {
        parameters_[bucket.members().front()].tensor.mutable_grad() = at::Tensor();
      } else {
        bucket.flat().zero_();
      }
      pending_[index] = 0;
    }
    launch_what_is_ready();
    finish();
  });
  pass_.reset();
  reset();
}

DdpStats Reducer::stats() const {
  DdpStats stats;
  timeline_.report(stats);
  stats.buckets.resize(buckets_.size());
  for (size_t index = 0; index < buckets_.size(); ++index) {
    const auto& bucket = buckets_[index];
    auto& reported = stats.buckets[index];
    for (const auto member : bucket.members()) reported.parameters.push_back(parameters_[member].name);
    const auto& first = parameters_[bucket.members().front()].tensor;
    reported.dtype = c10::toString(first.scalar_type());
    reported.bytes = bucket.sparse() ? 0 : static_cast<int64_t>(bucket.flat().nbytes());
    stats.bytes += reported.bytes;
  }
  return stats;
}

}  // namespace lockstep::reducer
