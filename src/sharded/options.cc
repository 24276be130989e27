// The options of all ranks: they must be the same; under Join, the ranks that have no input left, which still
// update their part of the parameters, take those of the others.
#include <algorithm>
#include <fmt/format.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "comm/control.h"
#include "comm/purpose.h"
#include "optim/kinds.h"
#include "sharded/impl.h"

namespace lockstep {

template <class Visit>
void ShardedOptimizer::Impl::visit_options(Visit&& visit) {
  for (size_t i = 0; i < owner.param_groups().size(); ++i) {
    optim::with_kind_of(owner.param_groups()[i].options(), [&](auto kind, auto& options) {
      decltype(kind)::visit_options(options, [&](const char* name, auto& value) { visit(i, name, value); });
    });
  }
}

namespace {

bool is_power_of_two(int64_t number) { return (number & (number - 1)) == 0; }

std::string text_of(const std::vector<double>& values, size_t index) {
  return index < values.size() ? fmt::format("{}", values[index]) : "missing";
}

}  // namespace

// Each rank updates a part of every parameter, so a difference would not show in the replicas.
void ShardedOptimizer::Impl::compare_options() {
  if (!ddp.reducer || !ddp.options.checks || !is_power_of_two(step_number_ + 1)) return;
  std::vector<double> mine;
  std::vector<std::string> names;
  const auto add = [&](std::string name, double value) {
    names.push_back(std::move(name));
    mine.push_back(value);
  };
  add("the factor of clip_grad_norm", clip.value_or(1));
  visit_options([&](size_t group, const char* name, const auto& value) {
    add(fmt::format("{} of group {}", name, group), static_cast<double>(value));
  });
  const auto all = comm::control_of(*ddp.group).gather_lists("ShardedOptimizer, options", mine);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const auto longest = std::max(all[0].size(), all[rank].size());
    size_t at = 0;
    while (at < longest && text_of(all[0], at) == text_of(all[rank], at)) ++at;  // NaN is equal to NaN here
    if (at == longest) continue;
    const MismatchError error(base::compose(
        {.what = "the ranks step a ShardedOptimizer with different options",
         .where = fmt::format("rank {}/{}", ddp.group->rank(), ddp.group->world_size()),
         .evidence =
             fmt::format("{} is {} on rank 0, and {} on rank {}", at < names.size() ? names[at] : "an option",
                         text_of(all[0], at), text_of(all[rank], at), rank),
         .hint = "use the same options on all ranks; give a schedule that depends on the loss the mean over "
                 "all ranks"}));
    ddp.group->poison(error);
    throw error;
  }
}

void ShardedOptimizer::Impl::shadow_step(int leader) {
  const comm::Purpose purpose("ShardedOptimizer::step, for the ranks that have input");
  share_options(leader);
  step();
}

void ShardedOptimizer::Impl::shadow_clip(int leader) {
  const comm::Purpose purpose("ShardedOptimizer::clip_grad_norm, for the ranks that have input");
  clip_grad_norm(share_max_norm(0, leader), /*error_if_nonfinite=*/false);
}

double ShardedOptimizer::Impl::share_max_norm(double mine, int leader) {
  return comm::control_of(*ddp.group).of_root("Join, the largest norm", mine, leader);
}

// A rank that has finished no longer steps its schedules.
void ShardedOptimizer::Impl::share_options(int leader) {
  std::vector<double> mine;
  visit_options([&](size_t, const char*, const auto& value) { mine.push_back(static_cast<double>(value)); });
  const auto theirs =
      comm::control_of(*ddp.group).list_of_root("Join, options of the optimizer", mine, leader);
  if (theirs.size() != mine.size()) {
    throw MismatchError(
        base::compose({.what = "the ranks have different parameter groups",
                       .where = fmt::format("rank {}/{}", ddp.group->rank(), ddp.group->world_size()),
                       .evidence = fmt::format("this rank has {} options, rank {} has {}", mine.size(),
                                               leader, theirs.size()),
                       .hint = "construct the optimizer with the same groups on all ranks"}));
  }
  auto next = theirs.begin();
  visit_options(
      [&](size_t, const char*, auto& value) { value = static_cast<std::decay_t<decltype(value)>>(*next++); });
}

}  // namespace lockstep
