// The state of a sharded optimizer: collected from all ranks, and divided among them.
//
// It is collected parameter by parameter. Each rank writes its elements into an array of zeros; the bitwise
// or of these arrays is the state, to the bit.
#include <algorithm>
#include <fmt/format.h>

#include <ATen/ATen.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "comm/purpose.h"
#include "optim/kinds.h"
#include "optim/plain.h"
#include "optim/steps.h"
#include "sharded/impl.h"

namespace lockstep {

using sharded::BucketUpdate;
using torch::optim::OptimizerParamGroup;
using torch::optim::OptimizerParamState;

namespace {

// In the order of the elements in memory, which is that of the bucket.
float* elements_of(const at::Tensor& tensor) { return tensor.data_ptr<float>(); }

at::Tensor zeros_for(const at::Tensor& parameter) {
  return at::zeros_like(parameter, parameter.options().dtype(at::kFloat).requires_grad(false),
                        at::MemoryFormat::Preserve);
}

// Of an array in which each rank has written its elements, and zeros elsewhere.
void collect(ProcessGroup& group, at::Tensor& array, ShardedOptimizer::Receivers receivers) {
  auto bits = at::from_blob(array.data_ptr(), {array.numel()}, at::kInt);
  if (receivers == ShardedOptimizer::Receivers::AllRanks) {
    group.all_reduce(bits, ReduceOp::Bor);
  } else {
    group.reduce(bits, 0, ReduceOp::Bor);
    if (group.rank() != 0) array.reset();
  }
}

int index_of(const torch::optim::OptimizerOptions& options, const char* name) {
  for (const auto& state : optim::states_of(options)) {
    if (std::string_view(state.name) == name) return state.index;
  }
  return -1;
}

// Calls `visit` with the name and the reference of each tensor in the state, and with that of the step
// counter.
template <class Visit>
void visit_state(const torch::optim::OptimizerOptions& options, OptimizerParamState& state, Visit&& visit) {
  optim::with_kind_of(options, [&](auto kind, const auto& known) {
    using Kind = decltype(kind);
    Kind::visit_slots(static_cast<typename Kind::State&>(state), known,
                      [&](const char* name, auto& value, bool) { visit(name, value); });
  });
}

std::unique_ptr<OptimizerParamState> make_state(const torch::optim::OptimizerOptions& options) {
  std::unique_ptr<OptimizerParamState> state;
  optim::with_kind_of(
      options, [&](auto kind, const auto&) { state = std::make_unique<typename decltype(kind)::State>(); });
  return state;
}

template <class Value>
constexpr bool kIsTensor = std::is_same_v<std::decay_t<Value>, at::Tensor>;

}  // namespace

std::unique_ptr<torch::optim::Optimizer> ShardedOptimizer::Impl::blank() const {
  std::vector<OptimizerParamGroup> groups;
  for (const auto& group : owner.param_groups()) groups.emplace_back(group.params(), group.options().clone());
  return optim::plain_optimizer(std::move(groups), owner.defaults());
}

int64_t ShardedOptimizer::Impl::state_bytes() const {
  int64_t bytes = 0;
  for (const auto& bucket : buckets_) bytes += bucket->state_bytes();
  if (!rest_) return bytes;
  for (const auto& group : rest_->param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto found = rest_->state().find(compat::state_key(parameter));
      if (found == rest_->state().end() || !found->second) continue;
      visit_state(group.options(), *found->second, [&](const char*, auto& value) {
        if constexpr (kIsTensor<decltype(value)>)
          bytes += value.defined() ? static_cast<int64_t>(value.nbytes()) : 0;
      });
    }
  }
  return bytes;
}

// ---- Collecting

// Ranks that are no longer there have taken their part with them.
void ShardedOptimizer::Impl::check_complete() const {
  int64_t all = 0, mine = 0;
  for (const auto& bucket : buckets_) {
    all += bucket->bucket().values.numel();
    mine += bucket->elements();
  }
  auto present = at::full({1}, mine, at::kLong);
  ddp.group->all_reduce(present);
  if (present.item<int64_t>() == all) return;
  throw UsageError(base::compose(
      {.what = "the state of a sharded optimizer is incomplete",
       .where = fmt::format("rank {}/{}", ddp.group->rank(), ddp.group->world_size()),
       .evidence = fmt::format("the ranks have {} of {} elements", present.item<int64_t>(), all),
       .hint = "resume from a snapshot"}));
}

ShardedOptimizer::Impl::ParamState ShardedOptimizer::Impl::gather_slot(const BucketUpdate& bucket,
                                                                       size_t slot, Receivers receivers,
                                                                       States states) const {
  const auto& parameter = bucket.parameters()[slot];
  const auto* const group = options_of(parameter);
  const auto steps = steps_.find(parameter.unsafeGetTensorImpl());
  if (group == nullptr || steps == steps_.end()) return {};
  auto state = make_state(*group);
  visit_state(*group, *state, [&](const char* name, auto& value) {
    if constexpr (kIsTensor<decltype(value)>) {
      const int index = index_of(*group, name);
      if (index < 0 || !bucket.has_state(index)) return;
      value = zeros_for(parameter);
      bucket.read_state(index, slot, elements_of(value));
      collect(*ddp.group, value, receivers);
      if (states == States::AsParameters && value.defined()) value = value.to(parameter.scalar_type());
    } else {
      value = steps->second;
    }
  });
  return state;
}

std::unique_ptr<torch::optim::Optimizer> ShardedOptimizer::Impl::to_plain(Receivers receivers,
                                                                          States states) {
  const at::NoGradGuard no_grad;
  const comm::Purpose purpose("ShardedOptimizer::to_plain");
  look_at_parameters();
  const bool receives = receivers == Receivers::AllRanks || ddp.group->rank() == 0;
  auto plain = blank();
  const auto put = [&](const at::Tensor& parameter, ParamState state) {
    if (state && receives) plain->state()[compat::state_key(parameter)] = std::move(state);
  };
  if (!buckets_.empty()) check_complete();
  for (const auto& bucket : buckets_) {
    for (size_t slot = 0; slot < bucket->bucket().slots.size(); ++slot) {
      put(bucket->parameters()[slot], gather_slot(*bucket, slot, receivers, states));
    }
  }
  for (const auto& group : owner.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (const auto found = pending_.find(parameter.unsafeGetTensorImpl()); found != pending_.end()) {
        put(parameter, found->second->clone());
      }
      if (!rest_) continue;
      const auto found = rest_->state().find(compat::state_key(parameter));
      if (found != rest_->state().end()) put(parameter, found->second->clone());
    }
  }
  return receives ? std::move(plain) : nullptr;
}

ShardedOptimizer::Masters ShardedOptimizer::Impl::masters(Receivers receivers) {
  const at::NoGradGuard no_grad;
  const comm::Purpose purpose("ShardedOptimizer::masters");
  Masters all;
  for (const auto& bucket : buckets_) {
    if (!bucket->has_masters()) continue;
    for (size_t slot = 0; slot < bucket->bucket().slots.size(); ++slot) {
      auto master = zeros_for(bucket->parameters()[slot]);
      bucket->read_masters(slot, elements_of(master));
      collect(*ddp.group, master, receivers);
      if (master.defined()) all.emplace_back(bucket->parameters()[slot], std::move(master));
    }
  }
  return all;
}

// ---- Dividing

void ShardedOptimizer::Impl::set_masters(const Masters& masters) {
  const at::NoGradGuard no_grad;
  for (const auto& [parameter, master] : masters) {
    pending_masters_[parameter.unsafeGetTensorImpl()] = zeros_for(parameter).copy_(master);
  }
  for (auto& bucket : buckets_) take_from_pending(*bucket);
}

void ShardedOptimizer::Impl::from_plain(torch::optim::Optimizer& plain) {
  const at::NoGradGuard no_grad;
  look_at_parameters();
  auto& groups = owner.param_groups();
  const auto refuse = [&](const std::string& evidence, const char* hint) {
    throw UsageError(
        base::compose({.what = "a sharded optimizer cannot take over the state of another optimizer",
                       .where = fmt::format("rank {}/{}", ddp.group->rank(), ddp.group->world_size()),
                       .evidence = evidence,
                       .hint = hint}));
  };
  if (groups.size() != plain.param_groups().size()) {
    refuse(fmt::format("it has {} parameter groups, the other one {}", groups.size(),
                       plain.param_groups().size()),
           "construct both with the same groups");
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto* const mine = optim::name_of(groups[i].options());
    const auto* const theirs = optim::name_of(plain.param_groups()[i].options());
    if (theirs != nullptr && std::string_view(mine) == theirs) continue;
    refuse(fmt::format("it is {}, the other one {}", mine,
                       theirs != nullptr ? theirs : "none of those that it knows"),
           "construct both with options of the same kind");
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto& here = groups[i].params();
    const auto& there = plain.param_groups()[i].params();
    const auto [mine, other] = std::mismatch(here.begin(), here.end(), there.begin(), there.end(),
                                             [](const auto& a, const auto& b) { return a.is_same(b); });
    if (mine == here.end() && other == there.end()) continue;
    refuse(fmt::format("parameter {} of group {} is not the same tensor in both", mine - here.begin(), i),
           "construct both with the parameters of the same model, in the same order");
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    // Assigns to the options instead of replacing them, because the program may hold a reference.
    optim::with_kind_of(groups[i].options(), [&](auto kind, auto& options) {
      options = dynamic_cast<const typename decltype(kind)::Options&>(plain.param_groups()[i].options());
    });
  }
  take_state_of(plain);
  // The ranks may have other parts by then.
  buckets_.clear();
  if (ddp.reducer) ddp.reducer->forget_layout();
}

void ShardedOptimizer::Impl::take_state_of(torch::optim::Optimizer& plain) {
  steps_.clear();
  pending_.clear();
  if (rest_) rest_->state().clear();
  for (const auto& group : plain.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto found = plain.state().find(compat::state_key(parameter));
      if (found == plain.state().end() || !found->second) continue;
      pending_[parameter.unsafeGetTensorImpl()] = found->second->clone();
    }
  }
}

void ShardedOptimizer::Impl::laid_out(const std::vector<reducer::Held>& held) {
  if (!buckets_.empty()) {
    // The ranks have had other parts.
    const auto floats = masters(Receivers::AllRanks);
    take_state_of(*to_plain(Receivers::AllRanks, States::Float));
    buckets_.clear();
    set_masters(floats);
  }
  for (const auto& bucket : held) {
    std::vector<at::Tensor> parameters;
    for (const auto& slot : bucket.slots) {
      const auto& parameter = parameter_of(slot);
      parameters.push_back(parameter);
      // It was left to LibTorch's optimizer so far.
      if (!rest_) continue;
      const auto state = rest_->state().find(compat::state_key(parameter));
      if (state == rest_->state().end()) continue;
      pending_[parameter.unsafeGetTensorImpl()] = std::move(state->second);
      rest_->state().erase(state);
    }
    buckets_.push_back(std::make_unique<BucketUpdate>(bucket, std::move(parameters)));
    take_from_pending(*buckets_.back());
  }
}

void ShardedOptimizer::Impl::take_from_pending(BucketUpdate& bucket) {
  for (size_t slot = 0; slot < bucket.bucket().slots.size(); ++slot) {
    const auto& parameter = bucket.parameters()[slot];
    if (const auto master = pending_masters_.extract(parameter.unsafeGetTensorImpl())) {
      if (bucket.narrow()) {
        bucket.need_masters();
        bucket.write_masters(slot, elements_of(master.mapped()));
      }
    }
    const auto* const group = options_of(parameter);
    if (group == nullptr) continue;
    auto found = pending_.extract(parameter.unsafeGetTensorImpl());
    if (!found) continue;
    auto& steps = steps_[parameter.unsafeGetTensorImpl()];
    steps = 1;  // SGD has no counter; its momentum exists from the first step on
    visit_state(*group, *found.mapped(), [&](const char* name, auto& value) {
      if constexpr (kIsTensor<decltype(value)>) {
        const int index = index_of(*group, name);
        if (index < 0 || !value.defined()) return;
        bucket.need_state(index, optim::initial_value(*group));
        // With the parameter's strides.
        const auto whole = zeros_for(parameter).copy_(value);
        bucket.write_state(index, slot, elements_of(whole));
      } else {
        steps = value;
      }
    });
  }
}

}  // namespace lockstep
