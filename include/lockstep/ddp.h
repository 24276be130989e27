// Trains one replica of a model in each process: gradients are averaged during backward, so that all
// replicas take the same steps.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/serialize/archive.h>

#include <lockstep/comm_hook.h>
#include <lockstep/ddp_stats.h>
#include <lockstep/detail/module.h>
#include <lockstep/process_group.h>
#include <lockstep/tensors_in.h>

namespace lockstep {

enum class InitSync {
  Broadcast,  // all ranks copy rank 0's parameters and buffers
  Verify,     // MismatchError unless they are bitwise the same on all ranks
  None
};

struct DdpOptions {
  // The approximate size of the buckets in which gradients are sent, in MiB. The first bucket is smaller, so
  // that communication starts early. Between machines, the default stands for smaller buckets if they give
  // more overlap with backward (docs/multi-node.md); any other value is used as it is.
  double bucket_cap_mb = 25, first_bucket_mb = 1;
  InitSync init_sync = InitSync::Broadcast;
  // All ranks copy rank 0's buffers before each synchronised forward in training mode.
  bool broadcast_buffers = true;
  // Allows parameters that get no gradient in a backward pass. Costs a walk over the graph and a small
  // collective in each pass.
  bool find_unused_parameters = false;
  // Promises that every backward pass uses the same parameters, each the same number of times.
  bool static_graph = false;
  // Stores gradients in the memory that is sent. false: they are copied there and back.
  bool gradient_as_bucket_view = true;
  std::vector<std::string> ignore = {};  // names of parameters and buffers that are not synchronised
  // Compares all parameters, as verify_replicas() does, every so many synchronised forwards. 0: never.
  int64_t verify_every = 0;
  // Prints warnings about programs that run without errors but train incorrectly: all ranks get the same
  // batches, or parameters diverge because the optimizers differ. Checks only after the synchronised backward
  // passes 1, 2, 16, 256, 4096 …
  bool checks = true;
  // The ranks of a machine have one copy of the parameters together, instead of one each; needs a
  // ShardedOptimizer (docs/optimizers.md). A change that one of them makes is then a change for all of them:
  // between its steps, parameters may be changed only by loading them on all ranks (torch::load), or with
  // refresh() afterwards. Other changes are found in the next step, which throws UsageError. The parameters
  // move at the end of the first synchronised backward pass, and stay together when the wrapper is destroyed.
  bool share_parameters = false;
};

// While it exists, gradients stay local. Guards nest; each restores the state that it found.
class [[nodiscard]] NoSync {
 public:
  ~NoSync();
  NoSync(NoSync&& other) noexcept = default;
  NoSync& operator=(NoSync&&) = delete;

 private:
  friend class DdpBase;
  struct Switch;
  explicit NoSync(std::shared_ptr<Switch> of);

  std::shared_ptr<Switch> switch_;
  bool before_;
};

// The part of DistributedDataParallel that does not depend on the module's type.
class DdpBase {
 public:
  // The module's parameters, for an optimizer: each once, including those that are ignored or frozen.
  std::vector<at::Tensor> parameters() const;
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const;
  void zero_grad(bool set_to_none = true);
  const std::shared_ptr<ProcessGroup>& group() const;

  NoSync no_sync();
  // The same as a switch, for loops: on for the last micro-batch, off for the others.
  void set_gradient_sync(bool on);
  bool gradient_sync() const;

  // Replaces the averaging all-reduce of each bucket. Call it on all ranks, before the first backward pass.
  // Throws UsageError if a hook is already registered.
  void register_comm_hook(CommHook hook);
  // The cost of the last synchronised backward pass, and totals. All zero if the world size is 1.
  DdpStats stats() const;
  // Compares the parameters of all ranks. All ranks must call it; it blocks. Throws MismatchError with the
  // first parameter that differs and the ranks on which it does. Buffers are not compared: they may differ
  // between forwards, and with broadcast_buffers each synchronised forward starts with those of rank 0.
  void verify_replicas();

 protected:
  DdpBase(detail::ModelView model, std::shared_ptr<ProcessGroup> group, DdpOptions options);
  ~DdpBase();
  DdpBase(DdpBase&&) noexcept;
  DdpBase& operator=(DdpBase&&) noexcept;

  void before_forward();
  void after_forward(std::vector<at::Tensor> outputs);
  bool watches_outputs() const;
  bool looks_at_inputs() const;
  void look_at_inputs(const std::vector<at::Tensor>& inputs);
  void follow_module() const;
  void after_conversion();
  void refresh(detail::ModelView model);

 private:
  friend class Join;
  friend class ShardedOptimizer;
  friend class SnapshotPart;
  const detail::ModelView& model() const;

  struct Impl;  // src/ddp/ddp.h
  std::unique_ptr<Impl> impl_;
};

// Wraps a module. All ranks must construct it with the same model and options, and make the same synchronised
// passes in the same order. The constructor blocks until all ranks have called it: it compares the models and
// then applies init_sync. It throws UsageError (null group, no parameter that requires a gradient, invalid
// options) or MismatchError (the first difference between the models).
//
// When backward() returns, the gradients are averaged. Errors name the parameters; the first error on any
// rank ends the step on all of them and poisons the group.
//
// ddp(x) and ddp->forward(x) train the same way: gradients are averaged, no_sync() applies, and buffers are
// rank 0's. What ddp(x) does before forward, ddp->forward(x) does at the end of its backward pass. Therefore
// all ranks must use the same one of the two in a step (unless the model has no buffers), no_sync() must be
// in effect during backward(), and under Join only ddp(x) is allowed.
template <class Module>
class DistributedDataParallel : public DdpBase {
  static_assert(!detail::Holder<Module>,
                "DistributedDataParallel<torch::nn::Linear> names a holder: write the class of the module, "
                "DistributedDataParallel<torch::nn::LinearImpl>, or leave the argument out.");

 public:
  explicit DistributedDataParallel(std::shared_ptr<Module> module,
                                   std::shared_ptr<ProcessGroup> group = default_group(),
                                   DdpOptions options = {})
      : DdpBase(detail::Viewer<Module>::view(module), std::move(group), std::move(options)),
        module_(std::move(module)) {}

  // Module holders (TORCH_MODULE, torch::nn::Sequential, …).
  template <class Holder>
  requires std::same_as<typename Holder::ContainedType, Module>
  explicit DistributedDataParallel(const Holder& holder,
                                   std::shared_ptr<ProcessGroup> group = default_group(),
                                   DdpOptions options = {})
      : DistributedDataParallel(holder.ptr(), std::move(group), std::move(options)) {}

  // A named module. The wrapper does not own it: the module must outlive the wrapper. (std::type_identity_t:
  // the class of the module is deduced by the guide below.)
  explicit DistributedDataParallel(std::type_identity_t<Module>& module,
                                   std::shared_ptr<ProcessGroup> group = default_group(),
                                   DdpOptions options = {}) requires(!detail::Viewer<Module>::handle)
      : DistributedDataParallel(std::shared_ptr<Module>(std::shared_ptr<void>(), &module), std::move(group),
                                std::move(options)) {}

  // A class that is itself a handle of a module: torch::jit::Module.
  explicit DistributedDataParallel(std::type_identity_t<Module> handle,
                                   std::shared_ptr<ProcessGroup> group = default_group(),
                                   DdpOptions options = {}) requires(detail::Viewer<Module>::handle)
      : DistributedDataParallel(std::make_shared<Module>(std::move(handle)), std::move(group),
                                std::move(options)) {}

  // Anything else does not compile; the message says why.
  // NOLINTBEGIN(bugprone-forwarding-reference-overload): wrappers are excluded.
  template <class Given>
  requires(
      !detail::Holder<std::remove_cvref_t<Given>> && !std::convertible_to<Given, std::shared_ptr<Module>> &&
      !std::convertible_to<Given, Module&> && !std::derived_from<std::remove_cvref_t<Given>, DdpBase> &&
      !(detail::Viewer<Module>::handle &&
        std::convertible_to<Given, Module>)) explicit DistributedDataParallel(Given&&,
                                                                              std::shared_ptr<ProcessGroup> =
                                                                                  {},
                                                                              DdpOptions = {})
      : DdpBase({}, {}, {}) {
    static_assert(std::is_same_v<detail::ModuleOf<Given>, Module>,
                  "The module is of another class than the template argument of DistributedDataParallel.");
  }
  // NOLINTEND(bugprone-forwarding-reference-overload)

  template <class... Args>
  auto forward(Args&&... args) {
    if constexpr (!requires { module_->forward(std::forward<Args>(args)...); }) {
      static_assert(sizeof(Module*) == 0, "The module has no forward() that takes these arguments.");
    } else {
      return run(std::forward<Args>(args)...);
    }
  }
  template <class... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  Module* operator->() const {
    follow_module();
    return module_.get();
  }
  const std::shared_ptr<Module>& module() const { return module_; }

  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }

  // Converts the module with its own to(). All ranks must call it: they compare their models afterwards.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) {
    module_->to(device, dtype, non_blocking);
    after_conversion();
  }
  void to(torch::Dtype dtype, bool non_blocking = false) {
    module_->to(dtype, non_blocking);
    after_conversion();
  }
  void to(torch::Device device, bool non_blocking = false) {
    module_->to(device, non_blocking);
    after_conversion();
  }

  // Call it after parameters of the module were added, removed or replaced. It reads the parameters again,
  // compares the models of all ranks, makes them equal as init_sync says, and plans the buckets again. All
  // ranks must call it, between two steps; it blocks, and throws as the constructor does. An optimizer keeps
  // the tensors that it was constructed with: create a new one with parameters().
  void refresh() { DdpBase::refresh(detail::Viewer<Module>::view(module_)); }

 private:
  template <class... Args>
  auto run(Args&&... args) {
    before_forward();
    if (looks_at_inputs()) look_at_inputs(tensors_in(std::forward_as_tuple(args...)));
    if constexpr (std::is_void_v<decltype(module_->forward(std::forward<Args>(args)...))>) {
      module_->forward(std::forward<Args>(args)...);
      after_forward({});
    } else {
      auto output = module_->forward(std::forward<Args>(args)...);
      if (watches_outputs()) after_forward(tensors_in(output));
      return output;
    }
  }

  std::shared_ptr<Module> module_;
};

template <class Given>
requires(!std::derived_from<std::remove_cvref_t<Given>, DdpBase>)
    DistributedDataParallel(Given&&, std::shared_ptr<ProcessGroup> = {}, DdpOptions = {})
->DistributedDataParallel<detail::ModuleOf<Given>>;

// torch::save(ddp, path) and torch::load(ddp, path) write and read the module's own archive. Save on rank 0;
// load on all ranks.
template <std::derived_from<torch::nn::Module> Module>
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const DistributedDataParallel<Module>& ddp) {
  ddp.module()->save(archive);
  return archive;
}
template <std::derived_from<torch::nn::Module> Module>
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                           DistributedDataParallel<Module>& ddp) {
  ddp.module()->load(archive);
  return archive;
}

// For ranks with different numbers of batches:
//
//   lockstep::Join join(ddp);
//   for (auto& batch : *loader) …
//   join.finish();  // takes part in the other ranks' steps until no rank has input left; then all ranks copy
//                   // the model of a rank that took the last step
//
// Each step averages over the ranks that still have input. All ranks must construct a Join at the same point
// and call finish() on it. Each synchronised forward in between must be followed by one backward pass.
class Join {
 public:
  explicit Join(DdpBase& ddp);
  // Calls finish() if the program has not. It does not throw: an error is logged, and every later call on the
  // group throws it. If an exception leaves the scope, it poisons the group instead, so that the other ranks
  // do not wait.
  ~Join();
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  // Blocks until all ranks have called it. Throws the error if a step of the other ranks fails.
  void finish();

 private:
  DdpBase& ddp_;
  bool finished_ = false;
  int exceptions_;
};

}  // namespace lockstep
