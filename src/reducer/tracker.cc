#include "reducer/tracker.h"

#include <utility>

namespace lockstep::reducer {

Tracker::Tracker(size_t parameters, GraphPolicy policy)
    : policy_(policy), parameters_(parameters), counting_(policy.repeats_first_pass) {}

// ---- Forward passes

std::shared_ptr<const Forward> Tracker::expect(Forward forward, bool watched) {
  auto expected = std::make_shared<const Forward>(std::move(forward));
  unwatched_ = watched ? std::nullopt : std::optional(*expected);
  std::erase_if(open_forwards_, [](const auto& open) { return open.expired(); });
  open_forwards_.push_back(expected);
  return expected;
}

std::optional<Forward> Tracker::take_unwatched() { return std::exchange(unwatched_, std::nullopt); }

// The parameters that passes through the outputs of all open forwards may reach; nullopt if that is unknown
// for one of them.
std::optional<Flags> Tracker::reach_of_open_forwards() const {
  Flags reach(parameters_.size());
  for (const auto& open : open_forwards_) {
    const auto forward = open.lock();
    if (!forward) continue;
    if (forward->reach.empty()) return std::nullopt;
    for (size_t i = 0; i < reach.size(); ++i) reach[i] = reach[i] || forward->reach[i];
  }
  return reach;
}

// ---- Backward passes

bool Tracker::begin(const Forward& forward, const std::shared_ptr<void>& alive) {
  if (!pass_) pass_ = Pass{.bypasses = forward.bypasses, .alive = alive};
  pass_->bypasses = pass_->bypasses && forward.bypasses;
  if (!forward.sync || pass_->sync) return false;
  pass_->sync = true;
  pass_->turn = forward.turn;
  return true;
}

Settled Tracker::settle(size_t parameter, bool takes_part) {
  auto& known = parameters_[parameter];
  known.settled = true;
  return {parameter, takes_part};
}

std::vector<Settled> Tracker::settle_early(const Flags& requires_grad, bool knows_reach) {
  std::vector<Settled> settled;
  if (!learned_) return settled;
  const auto reach = policy_.may_leave_out && knows_reach ? reach_of_open_forwards() : std::nullopt;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& known = parameters_[i];
    if (known.settled || known.arrived > 0 || !known.planned) continue;
    const bool unreachable = reach && !(*reach)[i];
    const bool never_used = !counting_ && known.expected == 0;
    if (requires_grad[i] && !never_used && !unreachable) continue;
    // Gradients of earlier passes that were not synchronised are sent now.
    settled.push_back(settle(i, known.used));
  }
  return settled;
}

Tracker::Arrival Tracker::add_gradient(size_t parameter) {
  auto& known = parameters_[parameter];
  ++known.arrived;
  known.used = true;
  if (!pass_->sync) return Arrival::Counted;
  if (!learned_ && known.arrived == 1) ready_order_.push_back(parameter);
  if (!learned_ || counting_) return Arrival::Counted;
  if (known.arrived > known.expected) return Arrival::OneTooMany;
  if (known.settled) return Arrival::Unexpected;
  if (known.arrived < known.expected) return Arrival::Counted;
  known.settled = true;
  return Arrival::Complete;
}

Tracker::Rest Tracker::settle_rest(const Flags& requires_grad) {
  if (std::exchange(counting_, false)) {
    for (auto& known : parameters_) known.expected = known.arrived;
  }
  Rest rest;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& known = parameters_[i];
    if (known.settled) continue;
    if (!known.planned) {
      if (known.used && !rest.one_too_many) rest.one_too_many = i;
      continue;
    }
    if (known.arrived > known.expected) {
      if (!rest.one_too_many) rest.one_too_many = i;
      continue;
    }
    const bool complete = known.arrived == known.expected && known.arrived > 0;
    // A graph that repeats its first pass must use this parameter again, whatever earlier passes have left.
    const bool left_over =
        known.used && known.arrived == 0 && !(policy_.repeats_first_pass && known.expected > 0);
    if (complete || left_over) {
      rest.settled.push_back(settle(i, true));
    } else if (policy_.may_leave_out || known.expected == 0 || !requires_grad[i]) {
      rest.settled.push_back(settle(i, false));
    } else {
      rest.missing.push_back(i);
    }
  }
  return rest;
}

void Tracker::end_pass() { clear(pass_ && pass_->sync); }

void Tracker::end_shadow() { clear(true); }

void Tracker::clear(bool synchronised) {
  pass_.reset();
  ready_order_.clear();
  for (auto& known : parameters_) {
    known.arrived = 0;
    if (!synchronised) continue;
    known.used = known.settled = false;
  }
}

// ---- The learning pass

Tracker::Seen Tracker::seen(const Flags& requires_grad, const Flags& sparse) const {
  Seen seen;
  seen.learned.order =
      complete_order(policy_.plans_by_first_pass ? ready_order_ : std::vector<size_t>{}, parameters_.size());
  const bool all_used_once = !policy_.may_leave_out && !policy_.repeats_first_pass;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& known = parameters_[i];
    seen.learned.sparse.push_back(known.sparse || sparse[i]);
    seen.learned.used.push_back(known.used);
    if (all_used_once && !known.used && requires_grad[i]) seen.missing.push_back(i);
    if (!policy_.repeats_first_pass && known.arrived > 1 && !seen.one_too_many) seen.one_too_many = i;
  }
  return seen;
}

Learned Tracker::seen_nothing() const {
  Learned nothing;
  nothing.order = complete_order({}, parameters_.size());
  for (const auto& known : parameters_) nothing.sparse.push_back(known.sparse);
  nothing.used.assign(parameters_.size(), false);
  return nothing;
}

std::vector<size_t> Tracker::adopt(const Learned& agreed) {
  std::vector<size_t> planned;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].sparse = agreed.sparse[i];
    parameters_[i].planned = !policy_.repeats_first_pass || agreed.used[i];
  }
  for (const auto parameter : agreed.order) {
    if (parameters_[parameter].planned) planned.push_back(parameter);
  }
  return planned;
}

std::vector<size_t> complete_order(const std::vector<size_t>& ready, size_t count) {
  Flags present(count);
  for (const auto index : ready) present[index] = true;
  auto order = ready;
  for (size_t index = count; index-- > 0;) {
    if (!present[index]) order.push_back(index);
  }
  return order;
}

}  // namespace lockstep::reducer
