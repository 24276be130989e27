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
  Broadcast,  // all ranks take rank 0's parameters and buffers
  Verify,     // a MismatchError if they are not the same, bit for bit
  None
};

struct DdpOptions {
  // Gradients travel in buckets of about this size; the first is smaller, to begin early.
  double bucket_cap_mb = 25, first_bucket_mb = 1;
  InitSync init_sync = InitSync::Broadcast;
  // Before each synchronised forward in training mode all ranks take rank 0's buffers.
  bool broadcast_buffers = true;
  // Parameters may take no part in a backward pass. Costs a walk over the graph and a small collective.
  bool find_unused_parameters = false;
  // Every backward pass uses the same parameters, each equally often.
  bool static_graph = false;
  // Gradients live in the memory that travels; otherwise they are copied there and back.
  bool gradient_as_bucket_view = true;
  std::vector<std::string> ignore = {};  // names of parameters and buffers left alone
  // Every so many synchronised forwards all parameters are compared, as by verify_replicas().
  int64_t verify_every = 0;
  // Warnings about programs that run well and train wrongly: all ranks get the same batches; optimizers
  // differ, so that parameters do. Looks after the synchronised backward passes 1, 2, 16, 256, 4096 … only.
  bool checks = true;
};

// Gradients stay local while it lives. Guards nest and restore what they found.
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
  // Of the module, for an optimizer: each once, also those that are ignored or frozen.
  std::vector<at::Tensor> parameters() const;
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const;
  void zero_grad(bool set_to_none = true);
  const std::shared_ptr<ProcessGroup>& group() const;

  NoSync no_sync();
  // The same for loops: on for the last micro-batch, off for the others.
  void set_gradient_sync(bool on);
  bool gradient_sync() const;

  // Before the first backward pass.
  void register_comm_hook(CommHook hook);
  DdpStats stats() const;
  // Compares the parameters of all ranks; all must call it. Throws MismatchError naming the first that
  // differs, and on which rank. Buffers may differ between forwards; with broadcast_buffers each synchronised
  // forward begins with those of rank 0.
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
  friend class SnapshotPart;
  const detail::ModelView& model() const;

  struct Impl;  // src/ddp/ddp.h
  std::unique_ptr<Impl> impl_;
};

// All ranks must construct it, with the same model and options, and make the same synchronised passes.
//
// Gradients are final when backward() returns. Errors name the parameters; the first one on any rank ends the
// step on all of them.
//
// ddp(x) and ddp->forward(x) train alike: gradients are averaged, no_sync() is heeded, buffers are rank 0's.
// What ddp(x) does before forward, the other does at the end of its backward pass. So all ranks must use the
// same of the two in a step (a model without buffers does not mind), no_sync() must be there during
// backward(), and under Join it must be ddp(x).
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

  // (Identities: the module's class is deduced below.)
  //
  // A module with a name. The wrapper does not own it: it must live as long.
  explicit DistributedDataParallel(std::type_identity_t<Module>& module,
                                   std::shared_ptr<ProcessGroup> group = default_group(),
                                   DdpOptions options = {}) requires(!detail::Viewer<Module>::handle)
      : DistributedDataParallel(std::shared_ptr<Module>(std::shared_ptr<void>(), &module), std::move(group),
                                std::move(options)) {}

  // A handle of a module: torch::jit::load's.
  explicit DistributedDataParallel(std::type_identity_t<Module> handle,
                                   std::shared_ptr<ProcessGroup> group = default_group(),
                                   DdpOptions options = {}) requires(detail::Viewer<Module>::handle)
      : DistributedDataParallel(std::make_shared<Module>(std::move(handle)), std::move(group),
                                std::move(options)) {}

  // Anything else: says why it cannot be.
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
                  "DistributedDataParallel is made of a module of another class than its template argument.");
  }

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

  // As the module's own; all ranks must call it.
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

  // For a module whose parameters have appeared, vanished or been replaced: takes them anew, compares the
  // models of all ranks, makes them the same as init_sync says, and plans the buckets again. All ranks must
  // call it, between two steps. An optimizer holds the tensors that it was given: make a new one of
  // parameters().
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

// torch::save(ddp, path) and torch::load(ddp, path): the module's own archive. Rank 0 saves; all ranks load.
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
//   join.finish();  // a rank without input takes part in the others' steps until none has any left; then all
//                   // ranks take the model of the last one
//
// Steps are averaged over the ranks that still have input. All ranks must make a Join at the same point, and
// call finish() on it. Each synchronised forward in between must be followed by one backward pass.
class Join {
 public:
  explicit Join(DdpBase& ddp);
  // Calls finish() if the program has not. It does not throw: what goes wrong is logged, and every later call
  // on the group throws it. When the scope is left by an exception, the group ends instead, so that the other
  // ranks do not wait.
  ~Join();
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  // Blocks until all ranks have called it. Throws what goes wrong.
  void finish();

 private:
  DdpBase& ddp_;
  bool finished_ = false;
  int exceptions_;
};

}  // namespace lockstep
