#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>

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

void ShardedOptimizer::Impl::look_at_parameters() {
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
  for (size_t i = 0; i < held.slots.size(); ++i) bucket.plans()[i] = plan_of(bucket, held.slots[i]);
  return bucket;
}

BucketUpdate::Plan ShardedOptimizer::Impl::plan_of(BucketUpdate& bucket, const reducer::Held::Slot& slot) {
  const auto& parameter = parameter_of(slot);
  const auto* const group = options_of(parameter);
  if (!slot.used || group == nullptr) return {};
  BucketUpdate::Plan plan{.update = update_for(*group)};
  plan.step = optim::step_of(*group, ++steps_[parameter.unsafeGetTensorImpl()], clip);
  for (const auto& state : optim::states_of(*group)) {
    bucket.need_state(state.index, optim::initial_value(*group));
    plan.states[state.index] = true;
  }
  return plan;
}

// All groups have options of the same kind.
optim::Update ShardedOptimizer::Impl::update_for(const OptimizerOptions& group) {
  if (!fit_) {
    fit_ = optim::fit_of(group);
    if (!fit_->exact) {
      base::log_warn(
          "{}",
          base::compose({.what = fmt::format("the sharded {} may differ from LibTorch's in the last bits",
                                             optim::name_of(group)),
                         .evidence = "this LibTorch rounds in another way on this CPU",
                         .hint = "all ranks get the same bits nevertheless"}));
    }
  }
  return fit_->update;
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
      for (size_t i = 0; i < others_.size(); ++i) {
        const auto& options = owner.param_groups()[i].options();
        if (rest_) {
          rest_->add_param_group(OptimizerParamGroup(others_[i], options.clone()));
        } else {
          rest_ = optim::plain_optimizer(others_[i], options);
        }
      }
      if (before) rest_->state() = std::move(before->state());
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

// ---- The public interface

ShardedOptimizer::ShardedOptimizer(DdpBase& ddp, std::vector<OptimizerParamGroup> groups,
                                   std::unique_ptr<OptimizerOptions> defaults, ShardedOptions sharded)
    : Optimizer(std::move(groups), std::move(defaults)) {
  optim::rule_of(this->defaults());  // refuses others
  auto& of = *ddp.impl_;
  if (of.hold != reducer::Hold::Nothing) {
    throw UsageError(base::compose({.what = "a ShardedOptimizer cannot be constructed",
                                    .evidence = "this model has one already",
                                    .hint = "pass all parameter groups to one optimizer"}));
  }
  impl_ = std::make_unique<Impl>(of, *this);
  of.hold_gradients(sharded.average_gradients ? reducer::Hold::Averages : reducer::Hold::Own);
}

ShardedOptimizer::~ShardedOptimizer() {
  if (impl_) impl_->ddp.hold_gradients(reducer::Hold::Nothing);
}

torch::Tensor ShardedOptimizer::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure) {
    const at::AutoGradMode grad(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  const comm::Purpose purpose("ShardedOptimizer::step");
  auto& self = *impl_;
  self.look_at_parameters();
  if (self.ddp.reducer) self.ddp.reducer->update(self);
  self.step_rest();
  self.clip.reset();
  return loss;
}

double ShardedOptimizer::clip_grad_norm(double max_norm) {
  if (!(max_norm >= 0)) {
    throw UsageError(base::compose({.what = "the gradients cannot be clipped",
                                    .evidence = fmt::format("max_norm is {}", max_norm),
                                    .hint = "pass a number of at least 0"}));
  }
  const at::NoGradGuard no_grad;
  const comm::Purpose purpose("ShardedOptimizer::clip_grad_norm");
  auto& self = *impl_;
  self.look_at_parameters();
  const auto rest = self.rest_parameters();
  const double of_rest = clip_grad_norm_(rest, std::numeric_limits<double>::infinity());
  double squares = of_rest * of_rest;
  if (self.ddp.reducer) squares += self.sum_of_squares();
  const double norm = std::sqrt(squares);
  // The formula of PyTorch, including its guard against division by zero.
  const double factor = max_norm / (norm + 1e-6);
  self.clip.reset();
  if (factor >= 1) return norm;
  self.clip = static_cast<float>(factor);
  for (const auto& parameter : rest) {
    const auto& gradient = parameter.grad();
    if (gradient.defined()) (gradient.is_sparse() ? gradient._values() : gradient.detach()).mul_(factor);
  }
  return norm;
}

std::unique_ptr<torch::optim::Optimizer> ShardedOptimizer::to_plain(Receivers receivers) {
  return impl_->to_plain(receivers);
}
std::unique_ptr<torch::optim::Optimizer> ShardedOptimizer::blank_plain() const { return impl_->blank(); }
void ShardedOptimizer::from_plain(torch::optim::Optimizer& plain) { impl_->from_plain(plain); }

void ShardedOptimizer::save(torch::serialize::OutputArchive& archive) const {
  impl_->to_plain(Receivers::AllRanks)->save(archive);
}

void ShardedOptimizer::load(torch::serialize::InputArchive& archive) {
  const auto plain = impl_->blank();
  plain->load(archive);
  impl_->from_plain(*plain);
}

}  // namespace lockstep
