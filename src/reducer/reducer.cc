#include "reducer/reducer.h"

#include <ATen/ATen.h>

#include "reducer/diagnose.h"

namespace lockstep::reducer {

std::shared_ptr<Reducer> Reducer::make(std::shared_ptr<ProcessGroup> group, Parameters parameters,
                                       Options options) {
  std::shared_ptr<Reducer> reducer(new Reducer(std::move(group), std::move(parameters), options));
  for (size_t index = 0; index < reducer->parameters_.size(); ++index) {
    // The hooks go with the reducer, so they can do with its address.
    auto fire = [raw = reducer.get(), index] { raw->on_gradient(index); };
    reducer->hooks_.emplace_back(reducer->parameters_[index].tensor, std::move(fire));
    reducer->nodes_.emplace(reducer->hooks_.back().node(), index);
  }
  return reducer;
}

Reducer::Reducer(std::shared_ptr<ProcessGroup> group, Parameters parameters, Options options)
    : group_(std::move(group)),
      parameters_(std::move(parameters)),
      options_(options),
      states_(parameters_.size()),
      expected_(parameters_.size(), 1),
      places_(parameters_.size()) {
  for (const auto& parameter : parameters_) sparse_.push_back(parameter.sparse);
}

Reducer::~Reducer() = default;

void Reducer::fail(const UsageError& error) {
  group_->poison(error);
  throw error;
}

// ---- Forward

void Reducer::refuse_if_interrupted() {
  const std::lock_guard lock(mutex_);
  drop_interrupted_pass();
}

void Reducer::drop_interrupted_pass() {
  if (!pass_ || !pass_->alive.expired()) return;
  const bool harmless = !pass_->sync;
  pass_.reset();
  reset();
  if (!harmless) fail(interrupted(*group_));
}

void Reducer::expect(bool sync, Turn turn, const std::vector<at::Tensor>& outputs) {
  Forward forward{.sync = sync, .turn = turn};
  if (sync && options_.find_unused && learned_ && !outputs.empty()) {
    forward.reach = reachable(outputs, nodes_);
    const std::lock_guard lock(mutex_);
    may_be_reached_.resize(parameters_.size());
    for (size_t i = 0; i < parameters_.size(); ++i) may_be_reached_[i] = may_be_reached_[i] || forward.reach[i];
  }
  const std::lock_guard lock(mutex_);
  last_forward_ = forward;
  const auto shared = std::make_shared<const Forward>(std::move(forward));
  for (const auto& output : outputs) {
    // A hook on a leaf would stay there for ever.
    if (!output.defined() || !output.requires_grad() || output.is_leaf()) continue;
    output.register_hook([self = weak_from_this(), shared](const at::Tensor&) {
      if (const auto reducer = self.lock()) {
        const std::lock_guard begin_lock(reducer->mutex_);
        reducer->begin(*shared);
      }
    });
  }
}

// ---- Backward

void Reducer::begin(const Forward& forward) {
  drop_interrupted_pass();
  const bool was_sync = pass_ && pass_->sync;
  if (!pass_) {
    pass_.emplace();
    const auto alive = std::make_shared<int>(0);
    pass_->alive = alive;
    compat::at_end_of_backward([self = shared_from_this(), alive] { self->end(); });
  }
  if (!forward.sync || was_sync) return;
  pass_->sync = true;
  pass_->turn = forward.turn;
  timeline_.begin(buckets_.size());
  if (!learned_) return;

  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    auto& state = states_[i];
    if (state.ready || state.fired > 0) continue;
    const bool unreachable = !forward.reach.empty() && !forward.reach[i] &&
                             (may_be_reached_.empty() || !may_be_reached_[i]);
    const bool none_expected = !parameters_[i].tensor.requires_grad() || expected_[i] == 0 || unreachable;
    if (!none_expected) continue;
    // Gradients from passes that were not synchronised travel now.
    if (state.used) {
      set_ready(i);
    } else {
      set_bystander(i);
    }
  }
}

void Reducer::on_gradient(size_t index) {
  const std::lock_guard lock(mutex_);
  if (!pass_ || pass_->alive.expired()) begin(last_forward_);
  auto& state = states_[index];
  ++state.fired;
  const bool bystander = state.bystander.has_value();
  state.used = true;
  if (!pass_->sync) return;
  if (!learned_) {
    if (state.fired == 1) ready_order_.push_back(index);
    return;
  }
  if (state.fired > expected_[index]) fail(one_too_many(*group_, parameters_[index].name, options_.static_graph));
  if (bystander) fail(used_elsewhere(*group_, parameters_[index].name));
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
  if (gradient.requires_grad()) fail(with_graph(*group_, parameter.name));
  if (gradient.is_sparse() != sparse_[index]) {
    fail(unexpected_layout(*group_, parameter.name, gradient.is_sparse()));
  }
}

void Reducer::set_ready(size_t index) {
  check_gradient(index);
  const auto& place = places_[index];
  const at::NoGradGuard no_grad;
  if (place.bucket == SIZE_MAX) return;
  take_in(buckets_[place.bucket], place.slot, parameters_[index].tensor, options_.as_view);
  ready(index);
}

void Reducer::set_bystander(size_t index) {
  const auto& place = places_[index];
  if (place.bucket == SIZE_MAX) return;
  states_[index].bystander.emplace(buckets_[place.bucket], place.slot, parameters_[index].tensor);
  ready(index);
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
                                                         .index = index,
                                                         .is_last = index + 1 == buckets_.size()});
  }
}

// ---- The end of a pass

void Reducer::end() {
  const std::lock_guard lock(mutex_);
  if (!pass_) return;
  const at::NoGradGuard no_grad;
  const Pass pass = *pass_;
  may_be_reached_.clear();
  if (!pass.sync) {
    for (auto& state : states_) state.fired = 0;
    pass_.reset();
    return;
  }
  try {
    if (!learned_) learn(pass.turn);
    settle_the_rest();
    launch_what_is_ready();
    finish();
  } catch (...) {
    pass_.reset();
    flights_.clear();
    throw;
  }
  timeline_.end();
  timeline_.log();
  pass_.reset();
  reset();
}

void Reducer::settle_the_rest() {
  std::vector<std::string> missing;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    auto& state = states_[i];
    if (state.ready || places_[i].bucket == SIZE_MAX) continue;
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
  if (!missing.empty()) fail(no_gradient(*group_, missing, options_.static_graph));
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
  if (!missing.empty()) fail(no_gradient(*group_, missing, false));
  if (options_.static_graph) {
    for (size_t i = 0; i < count; ++i) expected_[i] = states_[i].fired;
  } else {
    for (size_t i = 0; i < count; ++i) {
      if (states_[i].fired > 1) fail(one_too_many(*group_, parameters_[i].name, false));
    }
  }
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
    for (size_t slot = 0; slot < bucket.members().size(); ++slot) {
      const auto& tensor = parameters_[bucket.members()[slot]].tensor;
      if (tensor.grad().defined() && !tensor.grad().requires_grad() && tensor.grad().is_sparse() == sparse) {
        take_in(bucket, slot, tensor, options_.as_view);
      }
    }
  }
  flights_.reserve(buckets_.size());
}

// ---- Passes of others

void Reducer::shadow(Turn turn) {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  if (!learned_) {
    Learned seen;
    seen.order = complete_order({}, parameters_.size());
    seen.sparse = sparse_;
    seen.used.assign(parameters_.size(), false);
    adopt(agree(*group_, turn.leader, seen));
  }
  pass_.emplace();
  pass_->sync = true;
  pass_->turn = turn;
  timeline_.begin(buckets_.size());
  for (size_t index = 0; index < buckets_.size(); ++index) {
    if (buckets_[index].sparse()) {
      parameters_[buckets_[index].members().front()].tensor.mutable_grad() = at::Tensor();
    } else {
      buckets_[index].flat().zero_();
    }
    pending_[index] = 0;
  }
  launch_what_is_ready();
  finish();
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
