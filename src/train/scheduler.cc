// Scheduler and ReduceLROnPlateau, which set the learning rates of an optimizer.
#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include <lockstep/error.h>
#include <lockstep/schedule.h>

#include "base/error_text.h"

namespace lockstep {

Scheduler::Scheduler(torch::optim::Optimizer& optimizer, Schedule schedule)
    : Scheduler(optimizer, std::vector<Schedule>(optimizer.param_groups().size(), schedule)) {}

Scheduler::Scheduler(torch::optim::Optimizer& optimizer, std::vector<Schedule> schedules)
    : optimizer_(optimizer), schedules_(std::move(schedules)) {
  const auto& groups = optimizer_.param_groups();
  if (schedules_.size() != groups.size()) {
    throw UsageError(base::compose(
        {.what = "Scheduler was given the wrong number of schedules",
         .evidence = fmt::format("{} for {} parameter groups", schedules_.size(), groups.size()),
         .hint = "pass one for each group, or a single one for all"}));
  }
  for (const auto& schedule : schedules_) {
    if (!schedule) throw UsageError("Scheduler was given a schedule that is an empty function");
  }
  for (const auto& group : groups) base_lrs_.push_back(group.options().get_lr());
  apply();
}

void Scheduler::step() { set_last_step(step_ + 1); }

void Scheduler::set_last_step(int64_t step) {
  if (step < 0) throw UsageError(fmt::format("a Scheduler counts steps from 0, but was given {}", step));
  step_ = step;
  apply();
}

void Scheduler::apply() {
  auto& groups = optimizer_.param_groups();
  if (groups.size() != base_lrs_.size()) {
    throw UsageError(
        base::compose({.what = "parameter groups were added to the optimizer after its Scheduler was made",
                       .evidence = fmt::format("{} then, {} now", base_lrs_.size(), groups.size()),
                       .hint = "add all groups before making the Scheduler"}));
  }
  last_lrs_.clear();
  for (size_t i = 0; i < groups.size(); ++i) {
    last_lrs_.push_back(schedules_[i](step_, base_lrs_[i]));
    groups[i].options().set_lr(last_lrs_[i]);
  }
}

void Scheduler::check(const State& state) const {
  if (state.last_step >= 0 && state.base_lrs.size() == base_lrs_.size()) return;
  throw SnapshotError(base::compose(
      {.what = "this is the state of another Scheduler",
       .evidence = fmt::format("it is at step {} with {} parameter groups, but the optimizer has {}",
                               state.last_step, state.base_lrs.size(), base_lrs_.size()),
       .hint = "make the optimizer with the parameter groups that it had when the state was saved"}));
}

void Scheduler::restore(const State& state) {
  check(state);
  base_lrs_ = state.base_lrs;
  step_ = state.last_step;
  apply();
}

ReduceLROnPlateau::ReduceLROnPlateau(torch::optim::Optimizer& optimizer, PlateauOptions options)
    : optimizer_(optimizer), options_(options) {
  if (!(options_.factor < 1)) {
    throw UsageError(base::compose({.what = "ReduceLROnPlateau cannot reduce the learning rate",
                                    .evidence = fmt::format("the factor is {}", options_.factor),
                                    .hint = "pass a factor below 1"}));
  }
  if (options_.maximize) state_.best = -state_.best;
}

void ReduceLROnPlateau::step(double metric) {
  ++state_.last_epoch;
  if (is_better(metric)) {
    state_.best = metric;
    state_.num_bad_epochs = 0;
  } else {
    ++state_.num_bad_epochs;
  }
  if (state_.cooldown_counter > 0) {
    --state_.cooldown_counter;
    state_.num_bad_epochs = 0;
  }
  if (state_.num_bad_epochs <= options_.patience) return;
  reduce();
  state_.cooldown_counter = options_.cooldown;
  state_.num_bad_epochs = 0;
}

bool ReduceLROnPlateau::is_better(double metric) const {
  const double sign = options_.maximize ? 1 : -1;
  const double needed = options_.absolute ? state_.best + sign * options_.threshold
                                          : state_.best * (1 + sign * options_.threshold);
  return options_.maximize ? metric > needed : metric < needed;
}

void ReduceLROnPlateau::reduce() {
  for (auto& group : optimizer_.param_groups()) {
    const double before = group.options().get_lr();
    const double after = std::max(before * options_.factor, options_.min_lr);
    if (before - after > options_.eps) group.options().set_lr(after);
  }
}

}  // namespace lockstep
