#include "reducer/reducer.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "comm/control.h"
#include "comm/purpose.h"
#include "reducer/agree.h"
#include "reducer/diagnose.h"

namespace lockstep::reducer {

std::shared_ptr<Reducer> Reducer::make(std::shared_ptr<ProcessGroup> group, Parameters parameters,
                                       Options options, Owner& owner) {
  std::shared_ptr<Reducer> reducer(new Reducer(std::move(group), std::move(parameters), options, owner));
  for (size_t index = 0; index < reducer->parameters_.size(); ++index) {
    // The reducer owns the hooks, so they can refer to it by its address.
    auto fire = [raw = reducer.get(), index] { raw->on_gradient(index); };
    reducer->hooks_.emplace_back(reducer->parameters_[index].tensor, std::move(fire));
    reducer->nodes_.emplace(reducer->hooks_.back().node(), index);
  }
  return reducer;
}

Reducer::Reducer(std::shared_ptr<ProcessGroup> group, Parameters parameters, Options options, Owner& owner)
    : group_(std::move(group)),
      parameters_(std::move(parameters)),
      owner_(owner),
      tracker_(parameters_.size(), options.policy),
      launcher_(group_, parameters_, options.caps, options.as_view, options.copies) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].sparse) tracker_.set_sparse(i);
  }
}

Reducer::~Reducer() = default;

// ---- Errors

template <class Body>
void Reducer::guarded(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    drop_and_end(error);
    throw;
  } catch (const std::exception& error) {
    drop_and_end(Error(error.what()));
    throw;
  } catch (...) {
    // Autograd supports only exceptions that derive from std::exception.
    const auto error = no_exception(*group_);
    drop_and_end(error);
    throw error;
  }
}

void Reducer::drop_and_end(const Error& why) {
  forget_pass();
  group_->poison(why);
}

void Reducer::forget_pass() {
  launcher_.drop();
  tracker_.end_pass();
}

void Reducer::drop_interrupted_pass() {
  if (!tracker_.interrupted()) return;
  if (tracker_.pass()->sync) throw interrupted(*group_);
  tracker_.end_pass();
}

// ---- Forward

void Reducer::refuse_if_interrupted() {
  const std::lock_guard lock(mutex_);
  guarded([&] { drop_interrupted_pass(); });
}

bool Reducer::fits_parameters() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& parameter = parameters_[i];
    const auto& tensor = parameter.tensor;
    if (tensor.scalar_type() != parameter.dtype || tensor.device() != parameter.device) return false;
    if (!hooks_[i].belongs_to(tensor)) return false;
  }
  return true;
}

void Reducer::expect(bool sync, Turn turn, std::vector<at::Tensor> outputs) {
  // A hook on a leaf would stay registered forever.
  std::erase_if(outputs, [](const at::Tensor& output) {
    return !output.defined() || !output.requires_grad() || output.is_leaf();
  });
  Forward forward{.sync = sync, .turn = turn};
  if (tracker_.policy().may_leave_out && tracker_.learned() && !outputs.empty()) {
    forward.reach.resize(parameters_.size());
    compat::walk_graph(outputs, [&](compat::NodeAddress node) {
      const auto found = nodes_.find(node);
      if (found != nodes_.end()) forward.reach[found->second] = true;
    });
  }

  const std::lock_guard lock(mutex_);
  const auto expected = tracker_.expect(std::move(forward), !outputs.empty());
  for (const auto& output : outputs) {
    output.register_hook([self = weak_from_this(), expected](const at::Tensor&) {
      const auto reducer = self.lock();
      if (!reducer || !compat::accumulates_into(reducer->nodes_)) return;
      const std::lock_guard begin_lock(reducer->mutex_);
      reducer->guarded([&] { reducer->begin(*expected); });
    });
  }
}

// ---- Backward

void Reducer::begin(const Forward& forward) {
  drop_interrupted_pass();
  launcher_.forget_samples();
  std::shared_ptr<void> alive;
  if (!tracker_.pass()) {
    alive = std::make_shared<int>(0);
    compat::at_end_of_backward([self = shared_from_this(), alive] { self->end(); });
  }
  if (!tracker_.begin(forward, alive)) return;
  launcher_.begin(tracker_.pass()->turn.participants, true);
  const at::NoGradGuard no_grad;
  apply(tracker_.settle_early(requires_grad(), !forward.reach.empty()));
}

// For a pass that begins with a gradient. If an output hook follows in the same pass, that gradient bypassed
// the outputs; the pass still belongs to the wrapper, and is synchronised if either forward was. Averaging
// once too often does no harm: the average of averages is the average.
void Reducer::begin_unannounced() {
  if (const auto forward = tracker_.take_unwatched()) {
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
    if (!tracker_.pass() || tracker_.interrupted()) begin_unannounced();
    switch (tracker_.add_gradient(index)) {
      case Tracker::Arrival::Counted:
        break;
      case Tracker::Arrival::Complete: {
        check_gradient(index);
        const at::NoGradGuard no_grad;
        launcher_.add(index);
        launcher_.launch_full_buckets();
        break;
      }
      case Tracker::Arrival::OneTooMany:
        throw one_too_many(*group_, parameters_[index].name, tracker_.policy().repeats_first_pass);
      case Tracker::Arrival::Unexpected:
        throw used_elsewhere(*group_, parameters_[index].name);
    }
    launcher_.poll();
  });
}

void Reducer::check_gradient(size_t index) const {
  const auto& parameter = parameters_[index];
  const auto& gradient = parameter.tensor.grad();
  if (!gradient.defined()) return;
  if (gradient.requires_grad()) throw with_graph(*group_, parameter.name);
  if (gradient.is_sparse() != tracker_.is_sparse(index)) {
    throw unexpected_layout(*group_, parameter.name, gradient.is_sparse());
  }
}

void Reducer::apply(const std::vector<Settled>& settled) {
  for (const auto& [parameter, takes_part] : settled) {
    check_gradient(parameter);
    if (takes_part) {
      launcher_.add(parameter);
    } else {
      launcher_.add_bystander(parameter);
    }
  }
}

// ---- The end of a pass

void Reducer::end() {
  const std::lock_guard lock(mutex_);
  if (!tracker_.pass()) return;
  const bool bypassed = tracker_.pass()->bypasses;
  if (!tracker_.pass()->sync) {
    synchronised_ = false;
    tracker_.end_pass();
    if (bypassed) guarded([&] { owner_.after_pass(false, true); });
    return;
  }
  guarded([&] {
    const at::NoGradGuard no_grad;
    if (!tracker_.learned()) learn();
    settle_the_rest();
    launcher_.launch_full_buckets();
    launcher_.finish([this] { return used_anywhere(); });
  });
  launcher_.end_pass();
  launcher_.log();
  tracker_.end_pass();
  has_gradients_ = synchronised_ = awaits_update_ = true;
  guarded([&] { owner_.after_pass(true, bypassed); });
}

void Reducer::settle_the_rest() {
  const auto rest = tracker_.settle_rest(requires_grad());
  if (rest.one_too_many) {
    throw one_too_many(*group_, parameters_[*rest.one_too_many].name, tracker_.policy().repeats_first_pass);
  }
  apply(rest.settled);
  if (!rest.missing.empty()) throw got_none(rest.missing, tracker_.policy().repeats_first_pass);
}

UsageError Reducer::got_none(const std::vector<size_t>& missing, bool repeats) const {
  std::vector<std::string> names;
  for (const auto index : missing) names.push_back(parameters_[index].name);
  const auto replaced = owner_.replaced(names);
  return replaced.empty() ? no_gradient(*group_, names, repeats) : replaced_parameters(*group_, replaced);
}

// The parameters whose average is also used on ranks that have not used them themselves.
std::vector<bool> Reducer::used_anywhere() {
  if (tracker_.policy().repeats_first_pass) return requires_grad();
  std::vector<bool> used(parameters_.size());
  if (!tracker_.policy().may_leave_out) return used;
  for (size_t i = 0; i < used.size(); ++i) used[i] = tracker_.was_used(i);
  const comm::Purpose purpose("DDP gradients, unused parameters");
  return comm::control_of(*group_).any("DDP gradients, unused parameters", used);
}

Flags Reducer::requires_grad() const {
  Flags flags;
  flags.reserve(parameters_.size());
  for (const auto& parameter : parameters_) flags.push_back(parameter.tensor.requires_grad());
  return flags;
}

// ---- Updates

void Reducer::hold(Hold what, bool narrow) {
  const std::lock_guard lock(mutex_);
  launcher_.hold(what, narrow);
  has_gradients_ = awaits_update_ = false;
}

void Reducer::check_update() const {
  if (!has_gradients_) throw no_pass_to_update(*group_);
  if (!synchronised_ && launcher_.averages_held()) throw no_averages_to_update(*group_);
}

// Those of parameters that are left out of a pass may differ between the ranks. A rank without input has
// none.
Flags Reducer::have_gradients() {
  Flags have(parameters_.size());
  bool frozen = false;
  for (size_t i = 0; i < have.size(); ++i) {
    have[i] = launcher_.took_part() && parameters_[i].tensor.grad().defined();
    frozen = frozen || !parameters_[i].tensor.requires_grad();
  }
  if (!frozen && !tracker_.policy().may_leave_out && !launcher_.some_took_part()) return have;
  return comm::control_of(*group_).any("ShardedOptimizer, which gradients there are", have);
}

void Reducer::update(Updater& updater) {
  const std::lock_guard lock(mutex_);
  guarded([&] {
    check_update();
    const at::NoGradGuard no_grad;
    launcher_.update(updater, have_gradients());
  });
  awaits_update_ = false;
}

void Reducer::measure(const std::function<comm::Transform&(const Held&)>& transform_of) {
  const std::lock_guard lock(mutex_);
  guarded([&] {
    check_update();
    const at::NoGradGuard no_grad;
    launcher_.measure(transform_of, have_gradients());
  });
}

// ---- The first pass

void Reducer::learn() {
  Flags sparse;
  for (const auto& parameter : parameters_) {
    const auto& gradient = parameter.tensor.grad();
    sparse.push_back(gradient.defined() && gradient.is_sparse());
  }
  const auto seen = tracker_.seen(requires_grad(), sparse);
  if (!seen.missing.empty()) throw got_none(seen.missing, false);
  if (seen.one_too_many) throw one_too_many(*group_, parameters_[*seen.one_too_many].name, false);
  const comm::Purpose purpose("DDP gradients, plan of the buckets");
  plan(agree(*group_, tracker_.pass()->turn.leader, seen.learned));
}

void Reducer::plan(const Learned& agreed) {
  launcher_.plan(tracker_.adopt(agreed), agreed.sparse);
  tracker_.set_learned();
}

// ---- Passes of other ranks

void Reducer::shadow(Turn turn) {
  const std::lock_guard lock(mutex_);
  guarded([&] {
    const at::NoGradGuard no_grad;
    if (!tracker_.learned()) plan(agree(*group_, turn.leader, tracker_.seen_nothing()));
    tracker_.end_shadow();  // what it has used before is of no account
    launcher_.begin(turn.participants, false);
    launcher_.add_nothing();
    launcher_.launch_full_buckets();
    launcher_.finish([this] { return used_anywhere(); });
  });
  launcher_.drop();
  tracker_.end_shadow();
  has_gradients_ = synchronised_ = awaits_update_ = true;
}

}  // namespace lockstep::reducer
