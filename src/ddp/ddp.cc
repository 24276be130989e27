#include "ddp/ddp.h"

#include <algorithm>
#include <fmt/format.h>
#include <unordered_map>
#include <unordered_set>

#include <ATen/ATen.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/log.h"
#include "comm/checks.h"
#include "comm/control.h"
#include "comm/generation.h"
#include "comm/purpose.h"
#include "ddp/model.h"
#include "ddp/replicas.h"
#include "ddp/sync_batch_norm.h"
#include "reducer/sparse.h"

namespace lockstep {

namespace {

void check(const detail::ModelView& model, const ProcessGroup* group, const DdpOptions& options) {
  const auto refuse = [](const std::string& evidence, const std::string& hint) {
    throw UsageError(base::compose(
        {.what = "DistributedDataParallel cannot be constructed", .evidence = evidence, .hint = hint}));
  };
  if (group == nullptr) refuse("the process group is null", "call init_process_group first");
  if (!(options.bucket_cap_mb > 0) || !(options.first_bucket_mb > 0)) {
    refuse("a bucket's size must be more than 0 MB", "use the defaults of bucket_cap_mb and first_bucket_mb");
  }
  if (options.verify_every < 0) refuse("verify_every is less than 0", "0 turns the comparison off");
  const bool any = std::any_of(model.parameters.begin(), model.parameters.end(),
                               [](const auto& parameter) { return parameter.second.requires_grad(); });
  if (!any) refuse("no parameter of the module requires a gradient", "such a module does not need DDP");
  for (const auto& name : options.ignore) {
    const auto has = [&](const detail::NamedTensors& tensors) {
      return std::any_of(tensors.begin(), tensors.end(), [&](const auto& t) { return t.first == name; });
    };
    if (!has(model.parameters) && !has(model.buffers())) {
      refuse(fmt::format("there is no parameter or buffer '{}' to ignore", name),
             "use the names of named_parameters() and named_buffers()");
    }
  }
}

// Before anything is sent: the other ranks may have made the same mistake, or wait for this one until it
// ends.
void check_devices(const detail::NamedTensors& parameters, const ProcessGroup& group) {
  const auto& members = *comm::generation_of(group);
  for (const auto& [name, parameter] : parameters) {
    const auto device = parameter.device();
    if (members.transport->carries(device)) continue;
    const auto refusal = comm::refusal_of(members, device);
    throw UsageError(
        base::compose({.what = fmt::format("the module is on {}, where it cannot be trained", device.str()),
                       .where = fmt::format("rank {}/{}, '{}'", members.rank, members.world_size, name),
                       .evidence = refusal.evidence,
                       .hint = refusal.hint}));
  }
}

detail::NamedTensors without(detail::NamedTensors tensors, const std::vector<std::string>& names) {
  std::erase_if(tensors, [&](const auto& tensor) {
    return std::find(names.begin(), names.end(), tensor.first) != names.end();
  });
  return tensors;
}

// A tensor with several names is removed if any of them is in the list.
detail::NamedTensors without_tensors(detail::NamedTensors tensors, const std::vector<std::string>& names) {
  std::unordered_set<const void*> ignored;
  for (const auto& [name, tensor] : tensors) {
    if (std::find(names.begin(), names.end(), name) != names.end())
      ignored.insert(tensor.unsafeGetTensorImpl());
  }
  std::erase_if(tensors,
                [&](const auto& named) { return ignored.contains(named.second.unsafeGetTensorImpl()); });
  return tensors;
}

// The parameters of a module that is registered twice are listed twice.
detail::NamedTensors once_each(const detail::NamedTensors& tensors) {
  detail::NamedTensors unique;
  std::unordered_set<const void*> seen;
  for (const auto& named : tensors) {
    if (seen.insert(named.second.unsafeGetTensorImpl()).second) unique.push_back(named);
  }
  return unique;
}

size_t bytes_of(double megabytes) { return static_cast<size_t>(megabytes * (1 << 20)); }

detail::NamedTensors together(detail::NamedTensors tensors, const detail::NamedTensors& more) {
  tensors.insert(tensors.end(), more.begin(), more.end());
  return tensors;
}

reducer::GraphPolicy policy_of(const DdpOptions& options) {
  if (options.static_graph) return reducer::kStaticGraph;
  return options.find_unused_parameters ? reducer::kChangingGraph : reducer::kCompleteGraph;
}

}  // namespace

NoSync::NoSync(std::shared_ptr<Switch> of)
    : switch_(std::move(of)), before_(std::exchange(switch_->on, false)) {}

NoSync::~NoSync() {
  if (switch_) switch_->on = before_;
}

void DdpBase::Impl::refuse_under_join(const char* call) const {
  if (!joining) return;
  throw UsageError(base::compose({.what = fmt::format("ddp.{}() was called under Join", call),
                                  .hint = "call it before the Join is constructed, or after its end"}));
}

void DdpBase::Impl::follow_group() {
  if (!joining) turn = whole_group();
  if (!reducer && group->world_size() > 1) wrap(std::move(model));
}

DdpBase::Impl::Impl(detail::ModelView view, std::shared_ptr<ProcessGroup> with, DdpOptions chosen)
    : group(std::move(with)), options(std::move(chosen)) {
  const comm::Purpose purpose("DistributedDataParallel construction");
  check(view, group.get(), options);
  turn = whole_group();
  wrap(std::move(view));
}

void DdpBase::Impl::wrap(detail::ModelView view) {
  model = std::move(view);
  parameters = once_each(without_tensors(model.parameters, options.ignore));
  if (group->world_size() == 1) return;
  check_devices(parameters, *group);
  ddp::check_same_model(*group, ddp::describe_model(parameters, buffers(), options));
  const auto values = together(parameters, buffers());
  switch (options.init_sync) {
    case InitSync::Broadcast:
      ddp::broadcast_all(*group, values, 0);
      break;
    case InitSync::Verify:
      ddp::check_same_values(*group, values, "when the module is wrapped");
      break;
    case InitSync::None:
      break;
  }
  averaged.clear();
  sanity.forget_parameters();
  make_reducer();
  compared = true;
}

detail::NamedTensors DdpBase::Impl::buffers() const { return without(model.buffers(), options.ignore); }

void DdpBase::Impl::make_reducer() {
  reducer::Parameters to_average;
  averaged.resize(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, tensor] = parameters[i];
    // A parameter that was averaged once keeps its place, even while it is frozen.
    averaged[i] = averaged[i] || tensor.requires_grad();
    if (!averaged[i]) continue;
    const bool sparse = std::find(model.sparse.begin(), model.sparse.end(), name) != model.sparse.end();
    to_average.push_back({name, tensor, sparse});
  }
  reducer = reducer::Reducer::make(
      group, std::move(to_average),
      {.caps = {.first = bytes_of(options.first_bucket_mb),
                .others = bytes_of(options.bucket_cap_mb),
                .follow_transport = options.bucket_cap_mb == DdpOptions{}.bucket_cap_mb},
       .policy = policy_of(options),
       .as_view = options.gradient_as_bucket_view,
       .copies = options.share_parameters ? reducer::Bucket::Copies::OnePerMachine
                                          : reducer::Bucket::Copies::OnePerRank},
      *this);
  reducer->set_hook(hook);
  if (optimizer != nullptr) reducer->hold(hold, holds_narrow);
  compared = false;
}

void DdpBase::Impl::hold_gradients(reducer::Hold what, bool narrow, ddp::SharedOptimizer* for_whom) {
  hold = what;
  holds_narrow = narrow;
  optimizer = for_whom;
  if (reducer) reducer->hold(what, narrow);
}

bool DdpBase::Impl::outdated() const {
  for (size_t i = 0; i < averaged.size(); ++i) {
    if (!averaged[i] && parameters[i].second.requires_grad()) return true;
  }
  return !reducer->fits_parameters();
}

// A sharded optimizer has not taken the gradients yet, which would be lost with the reducer.
bool DdpBase::Impl::keeps_reducer() const { return optimizer != nullptr && reducer->awaits_update(); }

void DdpBase::Impl::compare_models_if_changed() {
  if (!keeps_reducer() && outdated()) make_reducer();
  if (std::exchange(compared, true)) return;
  const comm::Purpose purpose("DistributedDataParallel, parameters that were unfrozen or converted");
  ddp::check_same_model(*group, ddp::describe_model(parameters, buffers(), options));
}

// Ranks without input are notified only of synchronised forwards, so this forward would wait for them.
void DdpBase::Impl::refuse_lonely_batch_norm() const {
  if (!joining || !model.is_training() || ddp::sync_groups_in(model).empty()) return;
  throw UsageError(base::compose(
      {.what = "an unsynchronised training forward under Join uses synchronised batch norms",
       .evidence = "it runs under no_sync() or without gradient mode, after convert_sync_batchnorm",
       .hint = "synchronise every forward under Join, or evaluate in eval() mode"}));
}

// LibTorch's optimizers would update the one copy once for each rank.
void DdpBase::Impl::refuse_shared_parameters_without_optimizer() const {
  if (!options.share_parameters || optimizer != nullptr || !at::GradMode::is_enabled()) return;
  throw UsageError(
      base::compose({.what = "a model with share_parameters cannot be trained",
                     .where = fmt::format("rank {}/{}", group->rank(), group->world_size()),
                     .evidence = "it has no ShardedOptimizer",
                     .hint = "construct lockstep::ShardedOptimizer(ddp, …) before the first forward pass, or "
                             "leave DdpOptions::share_parameters out"}));
}

void DdpBase::Impl::sync_buffers(const reducer::Turn& with) {
  if (options.broadcast_buffers && model.is_training()) ddp::broadcast_all(*group, buffers(), with.leader);
}

void DdpBase::Impl::verify_now_and_then() {
  if (options.verify_every == 0 || ++forwards % options.verify_every != 0) return;
  const comm::Purpose purpose("DistributedDataParallel, comparison of the replicas (verify_every)");
  ddp::check_same_values(*group, parameters, "any more");
}

// ---- Around a forward pass

DdpBase::DdpBase(detail::ModelView model, std::shared_ptr<ProcessGroup> group, DdpOptions options)
    : impl_(std::make_unique<Impl>(std::move(model), std::move(group), std::move(options))) {}
DdpBase::~DdpBase() = default;
DdpBase::DdpBase(DdpBase&&) noexcept = default;
DdpBase& DdpBase::operator=(DdpBase&&) noexcept = default;

void DdpBase::before_forward() {
  auto& self = *impl_;
  self.follow_group();
  if (!self.reducer) return;
  self.reducer->refuse_if_interrupted();
  self.forward_syncs = self.sync->on && at::GradMode::is_enabled();
  self.refuse_shared_parameters_without_optimizer();
  if (!self.forward_syncs) {
    self.refuse_lonely_batch_norm();
    return;
  }
  if (self.joining) {
    if (self.outdated()) {
      throw UsageError(base::compose(
          {.what = "parameters were unfrozen, or converted to another dtype or device, under Join",
           .hint = "do that before the Join is constructed, or after its end"}));
    }
    const comm::Purpose purpose("Join, before forward");
    self.turn = self.announce(ddp::Act::Forward).turn;
  } else {
    self.reducer->skip_update();  // gradients accumulate
    self.compare_models_if_changed();
    self.verify_now_and_then();
  }
  const comm::Purpose purpose("DDP buffers, before forward");
  self.sync_buffers(self.turn);
}

bool DdpBase::looks_at_inputs() const {
  const auto& self = *impl_;
  return self.reducer && self.options.checks && !self.joining && self.forward_syncs &&
         self.sanity.looks_next() && self.model.is_training();
}

void DdpBase::look_at_inputs(const std::vector<at::Tensor>& inputs) { impl_->sanity.note_inputs(inputs); }

void DdpBase::after_forward(std::vector<at::Tensor> outputs) {
  auto& self = *impl_;
  if (!self.reducer || !at::GradMode::is_enabled()) return;
  self.reducer->expect(self.forward_syncs, self.turn, std::move(outputs));
}

bool DdpBase::watches_outputs() const { return impl_->reducer != nullptr && at::GradMode::is_enabled(); }

// ---- Changes of the module

void DdpBase::follow_module() const {
  impl_->follow_group();
  if (!impl_->reducer || impl_->joining || impl_->keeps_reducer()) return;
  if (impl_->outdated()) impl_->make_reducer();
}

void DdpBase::after_conversion() {
  if (!impl_->reducer) return;
  impl_->refuse_under_join("to");
  impl_->compare_models_if_changed();
}

void DdpBase::refresh(detail::ModelView model) {
  const comm::Purpose purpose("DistributedDataParallel::refresh");
  impl_->refuse_under_join("refresh");
  check(model, impl_->group.get(), impl_->options);
  if (impl_->reducer) impl_->reducer->refuse_if_interrupted();
  impl_->wrap(std::move(model));
}

// ---- After a backward pass

// Under Join, the ranks agree before each forward on who takes part; for this one, they have not. That is not
// an error yet: the gradient may have bypassed the outputs of an announced forward, as the end of the pass
// will show.
bool DdpBase::Impl::syncs_bypassed() const { return sync->on && !joining; }

void DdpBase::Impl::after_pass(bool synchronised, bool bypassed) {
  if (bypassed && joining && sync->on) {
    throw UsageError(base::compose(
        {.what = "under Join, the module was called without its wrapper, as ddp->forward(x)",
         .where = fmt::format("rank {}/{}", group->rank(), group->world_size()),
         .evidence =
             "gradients have arrived that belong to no forward of the wrapper, so the other ranks do not "
             "know about this step",
         .hint = "under Join, write ddp(x); for your own output types, define visit_tensors "
                 "(lockstep/tensors_in.h)"}));
  }
  if (!synchronised || joining) return;
  if (bypassed) {
    const comm::Purpose purpose("DDP, after a backward pass whose module was called as ddp->forward(x)");
    average_unplanned();
    compare_models_if_changed();
    verify_now_and_then();
    // ddp(x) does this before each forward. Here it is late, but rank 0's buffers depend only on its own
    // batches, so they are bitwise the same either way, and all ranks start the next forward with them. It
    // could make a difference only on the other ranks, after forwards under no_sync, for a module that
    // computes with its buffers in training (batch norm does not).
    sync_buffers(turn);
  }
  if (!options.checks) return;
  // With a hook, the replicas may differ on purpose; with verify_every, a difference is an error anyway.
  const bool compare = !hook && options.init_sync != InitSync::None && options.verify_every == 0;
  if (sanity.after_pass(*group, parameters, compare)) warn_of_other_parameters();
}

// Averages parameters that were unfrozen before this pass, which was not noticed then.
void DdpBase::Impl::average_unplanned() {
  std::vector<at::Tensor> unplanned;
  for (size_t i = 0; i < averaged.size(); ++i) {
    if (!averaged[i] && parameters[i].second.requires_grad()) unplanned.push_back(parameters[i].second);
  }
  if (unplanned.empty()) return;
  const at::NoGradGuard no_grad;
  enum Kind : uint8_t { kUnused, kDense, kSparse };
  std::vector<uint8_t> used;
  for (const auto& parameter : unplanned) {
    const auto& gradient = parameter.grad();
    used.push_back(!gradient.defined() ? kUnused : gradient.is_sparse() ? kSparse : kDense);
  }
  for (const auto& theirs :
       comm::control_of(*group).gather_lists("DDP, parameters that were unfrozen", used)) {
    for (size_t i = 0; i < used.size(); ++i) used[i] = std::max(used[i], theirs.at(i));
  }
  const Mean mean(group->world_size(), group->world_size());
  for (size_t i = 0; i < unplanned.size(); ++i) {
    auto& gradient = unplanned[i].mutable_grad();
    if (used[i] == kSparse) {
      gradient = reducer::average_sparse(*group, gradient, unplanned[i], mean);
    } else if (used[i] == kDense) {
      if (!gradient.defined()) gradient = at::zeros_like(unplanned[i]);
      group->all_reduce(gradient, ReduceOp::Avg);
    }
  }
}

std::vector<std::string> DdpBase::Impl::replaced(const std::vector<std::string>& names) const {
  std::unordered_map<std::string, const void*> present;
  for (const auto& [name, tensor] : model.present_parameters()) present[name] = tensor.unsafeGetTensorImpl();
  std::vector<std::string> others;
  for (const auto& [name, tensor] : parameters) {
    if (std::find(names.begin(), names.end(), name) == names.end()) continue;
    const auto now = present.find(name);
    if (now == present.end() || now->second != tensor.unsafeGetTensorImpl()) others.push_back(name);
  }
  return others;
}

// Parameters that were added or replaced are not averaged.
void DdpBase::Impl::warn_of_other_parameters() {
  if (warned_of_others) return;
  std::unordered_set<const void*> wrapped;
  for (const auto& [name, tensor] : model.parameters) wrapped.insert(tensor.unsafeGetTensorImpl());
  for (const auto& [name, tensor] : model.present_parameters()) {
    if (wrapped.contains(tensor.unsafeGetTensorImpl()) || !tensor.requires_grad()) continue;
    warned_of_others = true;
    base::log_warn(
        "{}",
        base::compose({.what = fmt::format("the gradient of '{}' is not averaged", name),
                       .evidence = "it was added or replaced after the module was wrapped",
                       .hint = "call ddp.refresh() after changing the module, and create a new optimizer"}));
    return;
  }
}

// ---- The rest of the public interface

std::vector<at::Tensor> DdpBase::parameters() const {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : once_each(impl_->model.parameters)) tensors.push_back(tensor);
  return tensors;
}

torch::OrderedDict<std::string, at::Tensor> DdpBase::named_parameters() const {
  torch::OrderedDict<std::string, at::Tensor> named("Parameter");
  for (const auto& [name, tensor] : once_each(impl_->model.parameters)) named.insert(name, tensor);
  return named;
}

void DdpBase::zero_grad(bool set_to_none) {
  for (const auto& [name, tensor] : impl_->model.parameters) {
    auto& gradient = tensor.mutable_grad();
    if (!gradient.defined()) continue;
    if (set_to_none) {
      gradient.reset();
    } else {
      gradient.detach_().zero_();
    }
  }
}

const std::shared_ptr<ProcessGroup>& DdpBase::group() const { return impl_->group; }
const detail::ModelView& DdpBase::model() const { return impl_->model; }

NoSync DdpBase::no_sync() { return NoSync(impl_->sync); }
void DdpBase::set_gradient_sync(bool on) { impl_->sync->on = on; }
bool DdpBase::gradient_sync() const { return impl_->sync->on; }

void DdpBase::register_comm_hook(CommHook hook) {
  if (impl_->hook) {
    throw UsageError(base::compose({.what = "a communication hook is already registered",
                                    .hint = "register only one, before the first backward pass"}));
  }
  impl_->hook = std::move(hook);
  if (impl_->reducer) impl_->reducer->set_hook(impl_->hook);
}

DdpStats DdpBase::stats() const { return impl_->reducer ? impl_->reducer->stats() : DdpStats{}; }

void DdpBase::verify_replicas() {
  impl_->follow_group();
  if (!impl_->reducer) return;
  const comm::Purpose purpose("verify_replicas");
  // Not the buffers: between two forwards, each rank's batch norm has counted its own batch.
  ddp::check_same_values(*impl_->group, impl_->parameters, "any more");
}

}  // namespace lockstep
