#include "ddp/ddp.h"

#include <algorithm>
#include <fmt/format.h>
#include <unordered_set>

#include <ATen/ATen.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/log.h"
#include "ddp/model.h"
#include "ddp/replicas.h"
#include "ddp/sync_batch_norm.h"

namespace lockstep {

namespace {

void check(const detail::ModelView& model, const ProcessGroup* group, const DdpOptions& options) {
  const auto refuse = [](const std::string& evidence, const std::string& hint) {
    throw UsageError(base::compose(
        {.what = "DistributedDataParallel cannot be made", .evidence = evidence, .hint = hint}));
  };
  if (group == nullptr) refuse("the process group is null", "call init_process_group first");
  if (!(options.bucket_cap_mb > 0) || !(options.first_bucket_mb > 0)) {
    refuse("a bucket's size must be more than 0 MB", "leave bucket_cap_mb and first_bucket_mb as they are");
  }
  if (options.verify_every < 0) refuse("verify_every is less than 0", "0 switches the comparison off");
  const bool any = std::any_of(model.parameters.begin(), model.parameters.end(),
                               [](const auto& parameter) { return parameter.second.requires_grad(); });
  if (!any) refuse("no parameter of the module requires a gradient", "a module without them needs no DDP");
  for (const auto& name : options.ignore) {
    const auto has = [&](const detail::NamedTensors& tensors) {
      return std::any_of(tensors.begin(), tensors.end(), [&](const auto& t) { return t.first == name; });
    };
    if (!has(model.parameters) && !has(model.buffers())) {
      refuse(fmt::format("there is no parameter or buffer '{}' to ignore", name),
             "names are those of named_parameters() and named_buffers()");
    }
  }
}

detail::NamedTensors without(detail::NamedTensors tensors, const std::vector<std::string>& names) {
  std::erase_if(tensors, [&](const auto& tensor) {
    return std::find(names.begin(), names.end(), tensor.first) != names.end();
  });
  return tensors;
}

// A tensor with several names is left out by any of them.
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

// A module that is registered twice brings its parameters twice.
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

}  // namespace

DdpBase::Impl::Impl(detail::ModelView view, std::shared_ptr<ProcessGroup> with, DdpOptions chosen)
    : model(std::move(view)), group(std::move(with)), options(std::move(chosen)) {
  check(model, group.get(), options);
  turn = {.participants = group->world_size(), .leader = 0};
  parameters = once_each(without_tensors(model.parameters, options.ignore));
  if (group->world_size() == 1) return;
  ddp::check_same_model(*group, ddp::describe_model(parameters, buffers(), options));
  const auto values = together(parameters, buffers());
  switch (options.init_sync) {
    case InitSync::Broadcast:
      ddp::broadcast_all(*group, values, 0);
      break;
    case InitSync::Verify:
      ddp::check_same_values(*group, values, "at construction");
      break;
    case InitSync::None:
      break;
  }
  make_reducer();
}

detail::NamedTensors DdpBase::Impl::buffers() const { return without(model.buffers(), options.ignore); }

void DdpBase::Impl::make_reducer() {
  reducer::Parameters to_average;
  averaged.resize(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, tensor] = parameters[i];
    // What has once been averaged keeps its place, even if it is frozen for now.
    averaged[i] = averaged[i] || tensor.requires_grad();
    if (!averaged[i]) continue;
    const bool sparse = std::find(model.sparse.begin(), model.sparse.end(), name) != model.sparse.end();
    to_average.push_back({name, tensor, sparse});
  }
  reducer = reducer::Reducer::make(
      group, std::move(to_average),
      {.caps = {.first = bytes_of(options.first_bucket_mb), .others = bytes_of(options.bucket_cap_mb)},
       .find_unused = options.find_unused_parameters,
       .static_graph = options.static_graph,
       .as_view = options.gradient_as_bucket_view});
  reducer->set_hook(hook);
}

// Ranks that have run out of input hear of synchronised forwards only, and would be waited for.
void DdpBase::Impl::refuse_lonely_batch_norm() const {
  if (!joining || !model.is_training() || ddp::sync_groups_in(model).empty()) return;
  throw UsageError(base::compose(
      {.what = "a training forward under Join that is not synchronised goes through synchronised batch norms",
       .evidence = "no_sync() or no gradient mode, with convert_sync_batchnorm",
       .hint = "synchronise every forward under Join, or evaluate in eval() mode"}));
}

void DdpBase::Impl::sync_buffers(const reducer::Turn& with) {
  if (options.broadcast_buffers && model.is_training()) ddp::broadcast_all(*group, buffers(), with.leader);
}

// ---- Around a forward pass

DdpBase::DdpBase(detail::ModelView model, std::shared_ptr<ProcessGroup> group, DdpOptions options)
    : impl_(std::make_unique<Impl>(std::move(model), std::move(group), std::move(options))) {}
DdpBase::~DdpBase() = default;
DdpBase::DdpBase(DdpBase&&) noexcept = default;
DdpBase& DdpBase::operator=(DdpBase&&) noexcept = default;

void DdpBase::before_forward() {
  auto& self = *impl_;
  if (!self.reducer) return;
  self.reducer->refuse_if_interrupted();
  self.forward_syncs = *self.sync && at::GradMode::is_enabled();
  if (!self.forward_syncs) {
    self.refuse_lonely_batch_norm();
    return;
  }

  // A parameter that was frozen until now has no place in the buckets.
  bool unfrozen = false;
  for (size_t i = 0; i < self.averaged.size(); ++i) {
    unfrozen = unfrozen || (!self.averaged[i] && self.parameters[i].second.requires_grad());
  }
  if (unfrozen || !self.reducer->fits_parameters()) {
    if (self.joining) {
      throw UsageError(
          base::compose({.what = "parameters were unfrozen, or got another dtype or device, under Join",
                         .hint = "do that before the Join is made, or after its end"}));
    }
    ddp::check_same_model(*self.group, ddp::describe_model(self.parameters, self.buffers(), self.options));
    self.make_reducer();
  }
  if (self.joining) self.turn = self.announce(true);
  if (self.options.verify_every > 0 && !self.joining && ++self.forwards % self.options.verify_every == 0) {
    ddp::check_same_values(*self.group, self.parameters, "any more");
  }
  self.sync_buffers(self.turn);
}

void DdpBase::after_forward(std::vector<at::Tensor> outputs) {
  auto& self = *impl_;
  if (!self.reducer || !at::GradMode::is_enabled()) return;
  self.reducer->expect(self.forward_syncs, self.turn, outputs);
}

bool DdpBase::watches_outputs() const { return impl_->reducer != nullptr && at::GradMode::is_enabled(); }

// ---- The rest of the public face

std::vector<at::Tensor> DdpBase::parameters() const {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : once_each(impl_->model.parameters)) tensors.push_back(tensor);
  return tensors;
}

const std::shared_ptr<ProcessGroup>& DdpBase::group() const { return impl_->group; }
const detail::ModelView& DdpBase::model() const { return impl_->model; }

NoSync DdpBase::no_sync() { return NoSync(impl_->sync); }
void DdpBase::set_gradient_sync(bool on) { *impl_->sync = on; }
bool DdpBase::gradient_sync() const { return *impl_->sync; }

void DdpBase::register_comm_hook(CommHook hook) {
  if (impl_->hook) {
    throw UsageError(base::compose({.what = "there is a communication hook already",
                                    .hint = "register one, before the first backward pass"}));
  }
  impl_->hook = std::move(hook);
  if (impl_->reducer) impl_->reducer->set_hook(impl_->hook);
}

DdpStats DdpBase::stats() const { return impl_->reducer ? impl_->reducer->stats() : DdpStats{}; }

void DdpBase::verify_replicas() {
  if (!impl_->reducer) return;
  // Not the buffers: between two forwards each rank's batch norm has counted its own batch.
  ddp::check_same_values(*impl_->group, impl_->parameters, "any more");
}

}  // namespace lockstep
