#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <string_view>

#include <ATen/ATen.h>

#include <lockstep/error.h>
#include <lockstep/train.h>

#include "base/error_text.h"
#include "base/log.h"
#include "comm/purpose.h"
#include "optim/plain.h"
#include "optim/steps.h"
#include "sharded/impl.h"

namespace lockstep {

using sharded::BucketUpdate;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;

// ---- Parameters and groups

void ShardedOptimizer::Impl::check_groups() const {
  const auto* const kind = optim::name_of(owner.defaults());
  for (size_t i = 0; i < owner.param_groups().size(); ++i) {
    const auto* const its = optim::name_of(owner.param_groups()[i].options());
    if (its != nullptr && std::string_view(its) == kind) continue;
    throw UsageError(
        base::compose({.what = "a ShardedOptimizer has parameter groups of several kinds",
                       .where = fmt::format("rank {}/{}", ddp.group->rank(), ddp.group->world_size()),
                       .evidence = fmt::format("it is {}, and the options of group {} are those of {}", kind,
                                               i, its != nullptr ? its : "another optimizer"),
                       .hint = "give all groups options of the same optimizer"}));
  }
}

void ShardedOptimizer::Impl::look_at_parameters() {
  check_groups();
  held_.clear();
  if (ddp.reducer) {
    const auto& parameters = ddp.reducer->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (ddp.reducer->holds(i)) held_.insert(parameters[i].tensor.unsafeGetTensorImpl());
    }
  }
  groups_.clear();
  others_.clear();
  const auto& groups = owner.param_groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    auto& others = others_.emplace_back();
    for (const auto& parameter : groups[i].params()) {
      const auto* const key = parameter.unsafeGetTensorImpl();
      groups_.emplace(key, i);
      if (!held_.contains(key)) others.push_back(parameter);
    }
  }
}

const OptimizerOptions* ShardedOptimizer::Impl::options_of(const at::Tensor& parameter) const {
  const auto found = groups_.find(parameter.unsafeGetTensorImpl());
  return found == groups_.end() ? nullptr : &owner.param_groups()[found->second].options();
}

const at::Tensor& ShardedOptimizer::Impl::parameter_of(const reducer::Held::Slot& slot) const {
  return ddp.reducer->parameters()[slot.parameter].tensor;
}

// ---- The update in buckets

comm::Transform& ShardedOptimizer::Impl::transform(size_t index, const reducer::Held& held) {
  auto& bucket = *buckets_[index];
  bucket.set_bucket(held);
  if (held.replaced) bucket.forget_values();
  for (size_t i = 0; i < held.slots.size(); ++i) bucket.plans()[i] = plan_of(bucket, held.slots[i]);
  return bucket;
}

BucketUpdate::Plan ShardedOptimizer::Impl::plan_of(BucketUpdate& bucket, const reducer::Held::Slot& slot) {
  const auto& parameter = parameter_of(slot);
  const auto* const group = options_of(parameter);
  if (!slot.used || group == nullptr) return {};
  if (bucket.narrow()) bucket.need_masters();
  BucketUpdate::Plan plan{.update = update_for(*group)};
  plan.step = optim::step_of(*group, ++steps_[parameter.unsafeGetTensorImpl()], clip);
  for (const auto& state : optim::states_of(*group)) {
    bucket.need_state(state.index, optim::initial_value(*group));
    plan.states[state.index] = true;
  }
  return plan;
}

optim::Update ShardedOptimizer::Impl::update_for(const OptimizerOptions& group) {
  const auto operations = optim::operations_of(group);
  const auto known = fits_.find(operations);
  if (known != fits_.end()) return known->second.update;
  const auto fit = fits_.emplace(operations, optim::fit_of(group)).first->second;
  if (!fit.exact) {
    base::log_warn(
        "{}", base::compose({.what = fmt::format("the sharded {} may differ from LibTorch's in the last bits",
                                                 optim::name_of(group)),
                             .evidence = "this LibTorch rounds in another way on this CPU",
                             .hint = "all ranks get the same bits nevertheless"}));
  }
  return fit.update;
}

double ShardedOptimizer::Impl::sum_of_squares() {
  double mine = 0;
  std::optional<sharded::SumOfSquares> sum;
  ddp.reducer->measure([&](const reducer::Held& bucket) -> comm::Transform& {
    if (sum) mine += sum->sum();
    return sum.emplace(
        bucket, [&](const reducer::Held::Slot& slot) { return options_of(parameter_of(slot)) != nullptr; });
  });
  if (sum) mine += sum->sum();
  auto total = at::full({1}, mine, at::kDouble);
  ddp.group->all_reduce(total);
  return total.item<double>();
}

// ---- The rest

std::vector<at::Tensor> ShardedOptimizer::Impl::rest_parameters() const {
  std::vector<at::Tensor> all;
  for (const auto& group : others_) all.insert(all.end(), group.begin(), group.end());
  return all;
}

// Without those that are not averaged, which would make the norm another one on each rank.
std::vector<at::Tensor> ShardedOptimizer::Impl::clipped_rest() const {
  auto rest = rest_parameters();
  if (!ddp.reducer) return rest;
  std::unordered_set<const void*> averaged;
  for (const auto& parameter : ddp.reducer->parameters()) {
    averaged.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  std::erase_if(
      rest, [&](const at::Tensor& parameter) { return !averaged.contains(parameter.unsafeGetTensorImpl()); });
  return rest;
}

void ShardedOptimizer::Impl::make_rest() {
  const auto same = [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); };
  const auto same_group = [&](const auto& a, const auto& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
  };
  if (!std::equal(others_.begin(), others_.end(), others_of_rest_.begin(), others_of_rest_.end(),
                  same_group)) {
    others_of_rest_ = others_;
    auto before = std::exchange(rest_, nullptr);
    if (!rest_parameters().empty()) {
      std::vector<OptimizerParamGroup> groups;
      for (size_t i = 0; i < others_.size(); ++i) {
        groups.emplace_back(others_[i], owner.param_groups()[i].options().clone());
      }
      rest_ = optim::plain_optimizer(std::move(groups), owner.defaults());
      // Its constructor may have made states of parameters that are new here.
      if (before) {
        for (auto& [key, state] : before->state()) rest_->state()[key] = std::move(state);
      }
    }
  }
  if (!rest_) return;
  for (const auto& parameter : rest_parameters()) {
    if (auto found = pending_.extract(parameter.unsafeGetTensorImpl())) {
      rest_->state()[compat::state_key(parameter)] = std::move(found.mapped());
    }
  }
  for (size_t i = 0; i < rest_->param_groups().size(); ++i) {
    rest_->param_groups()[i].set_options(owner.param_groups()[i].options().clone());
  }
}

void ShardedOptimizer::Impl::step_rest() {
  make_rest();
  if (rest_) rest_->step();
}

// ---- Steps

void ShardedOptimizer::Impl::step() {
  const at::NoGradGuard no_grad;
  look_at_parameters();
  ++step_number_;
  if (ddp.reducer) {
    ddp.reducer->update(*this);
    check_changes();
  }
  step_rest();
  clip.reset();
}

// Of parameters that all ranks of a machine share.
void ShardedOptimizer::Impl::check_changes() {
  for (const auto& bucket : buckets_) {
    const auto changed = bucket->take_changed();
    if (!changed) continue;
    const auto& parameter = ddp.reducer->parameters()[bucket->bucket().slots[*changed].parameter];
    const UsageError error(base::compose(
        {.what = fmt::format("'{}' was changed between two steps of the optimizer", parameter.name),
         .where = fmt::format("rank {}/{}", ddp.group->rank(), ddp.group->world_size()),
         .evidence = "with share_parameters, a change by one rank is one for all ranks of its machine, and a "
                     "change by all of them is made once for each",
         .hint = "change parameters on one rank of each machine, between two barriers, and call "
                 "ddp.refresh() on all ranks; or leave DdpOptions::share_parameters out"}));
    ddp.group->poison(error);
    throw error;
  }
}

void ShardedOptimizer::Impl::refuse_nonfinite(double norm) const {
  std::string evidence = "the gradients of this rank are finite";
  for (const auto& [name, parameter] : ddp.parameters) {
    const auto& gradient = parameter.grad();
    if (!gradient.defined() || at::isfinite(gradient.to_dense()).all().item<bool>()) continue;
    evidence = fmt::format("the first gradient of this rank that is not finite is that of '{}'", name);
    break;
  }
  throw Error(base::compose(
      {.what = fmt::format("the norm of the gradients is {}", norm),
       .where = fmt::format("rank {}/{}", ddp.group->rank(), ddp.group->world_size()),
       .evidence = evidence,
       .hint = "check the loss of this step, lower the learning rate, or skip the step: nothing "
               "has been changed"}));
}

double ShardedOptimizer::Impl::clip_grad_norm(double max_norm, bool error_if_nonfinite) {
  const at::NoGradGuard no_grad;
  look_at_parameters();
  const auto rest = clipped_rest();
  const double of_rest = clip_grad_norm_(rest, std::numeric_limits<double>::infinity());
  double squares = of_rest * of_rest;
  if (ddp.reducer) squares += sum_of_squares();
  const double norm = std::sqrt(squares);
  if (error_if_nonfinite && !std::isfinite(norm)) refuse_nonfinite(norm);
  // The formula of PyTorch, including its guard against division by zero.
  const double factor = max_norm / (norm + 1e-6);
  clip.reset();
  if (factor >= 1) return norm;
  clip = static_cast<float>(factor);
  for (const auto& parameter : rest) {
    const auto& gradient = parameter.grad();
    if (gradient.defined()) (gradient.is_sparse() ? gradient._values() : gradient.detach()).mul_(factor);
  }
  return norm;
}

// ---- The public interface

ShardedOptimizer::ShardedOptimizer(DdpBase& ddp, std::vector<OptimizerParamGroup> groups,
                                   std::unique_ptr<OptimizerOptions> defaults, ShardedOptions sharded)
    : Optimizer(std::move(groups), std::move(defaults)) {
  optim::rule_of(this->defaults());  // refuses others
  auto& of = *ddp.impl_;
  const auto refuse = [&](const char* evidence, const char* hint) {
    throw UsageError(
        base::compose({.what = "a ShardedOptimizer cannot be constructed",
                       .where = fmt::format("rank {}/{}", of.group->rank(), of.group->world_size()),
                       .evidence = evidence,
                       .hint = hint}));
  };
  if (of.optimizer != nullptr) {
    refuse("this model has one already", "pass all parameter groups to one optimizer");
  }
  if (of.joining) {
    refuse("the model is under Join, where ranks may have no input left", "construct it before the Join");
  }
  impl_ = std::make_unique<Impl>(of, *this);
  impl_->check_groups();
  of.hold_gradients(sharded.average_gradients ? reducer::Hold::Averages : reducer::Hold::Own,
                    sharded.master_parameters, impl_.get());
}

ShardedOptimizer::~ShardedOptimizer() {
  if (impl_) impl_->ddp.hold_gradients(reducer::Hold::Nothing, false, nullptr);
}

torch::Tensor ShardedOptimizer::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure) {
    const at::AutoGradMode grad(true);
    loss = closure();
  }
  const comm::Purpose purpose("ShardedOptimizer::step");
  if (impl_->ddp.joining) {
    impl_->share_options(impl_->ddp.announce(ddp::Act::Step).turn.leader);
  } else {
    impl_->compare_options();
  }
  impl_->step();
  return loss;
}

double ShardedOptimizer::clip_grad_norm(double max_norm, bool error_if_nonfinite) {
  if (!(max_norm >= 0)) {
    throw UsageError(base::compose(
        {.what = "the gradients cannot be clipped",
         .where = fmt::format("rank {}/{}", impl_->ddp.group->rank(), impl_->ddp.group->world_size()),
         .evidence = fmt::format("max_norm is {}", max_norm),
         .hint = "pass a number of at least 0"}));
  }
  const comm::Purpose purpose("ShardedOptimizer::clip_grad_norm");
  if (impl_->ddp.joining) {
    max_norm = impl_->share_max_norm(max_norm, impl_->ddp.announce(ddp::Act::Clip).turn.leader);
  }
  return impl_->clip_grad_norm(max_norm, error_if_nonfinite);
}

int64_t ShardedOptimizer::state_bytes() const { return impl_->state_bytes(); }

std::unique_ptr<torch::optim::Optimizer> ShardedOptimizer::to_plain(Receivers receivers, States states) {
  return impl_->to_plain(receivers, states);
}
std::unique_ptr<torch::optim::Optimizer> ShardedOptimizer::blank_plain() const { return impl_->blank(); }
void ShardedOptimizer::from_plain(torch::optim::Optimizer& plain) { impl_->from_plain(plain); }

ShardedOptimizer::Masters ShardedOptimizer::masters(Receivers receivers) { return impl_->masters(receivers); }
void ShardedOptimizer::set_masters(const Masters& masters) { impl_->set_masters(masters); }

void ShardedOptimizer::save(torch::serialize::OutputArchive& archive) const {
  impl_->to_plain(Receivers::AllRanks, States::Float)->save(archive);
}

void ShardedOptimizer::load(torch::serialize::InputArchive& archive) {
  const auto plain = impl_->blank();
  plain->load(archive);
  impl_->from_plain(*plain);
}

}  // namespace lockstep
