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
#include <lockstep/process_group.h>
#include <lockstep/tensors_in.h>

namespace torch::nn {
class AnyModule;
}

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
  explicit NoSync(std::shared_ptr<bool> sync)
      : sync_(std::move(sync)), before_(std::exchange(*sync_, false)) {}
  ~NoSync() {
    if (sync_) *sync_ = before_;
  }
  NoSync(NoSync&& other) noexcept : sync_(std::move(other.sync_)), before_(other.before_) {}
  NoSync& operator=(NoSync&&) = delete;

 private:
  std::shared_ptr<bool> sync_;
  bool before_;
};

class DdpBase;

namespace detail {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// What DDP sees of a module.
struct ModelView {
  NamedTensors parameters;
  std::function<NamedTensors()> present_parameters;  // what they are now: modules may replace their parts
  std::function<NamedTensors()> buffers;             // asked for anew each time: modules reassign them
  std::function<bool()> is_training;
  std::vector<std::string> sparse;  // parameters that will get sparse gradients
};
ModelView view_of(const std::shared_ptr<torch::nn::Module>& module);

// How to look at a module that is not a torch::nn::Module: lockstep/jit.h has one for TorchScript's.
template <class Module>
struct Viewer {
  static constexpr bool handle = false;  // a cheap handle, so that a copy of it is the same module
  static ModelView view(const std::shared_ptr<Module>& module) { return view_of(module); }
};

template <class T>
concept SmartPointer = requires {
  typename T::element_type;
  std::declval<const T&>().get();
};
template <class T>
concept Holder = requires {
  typename T::ContainedType;
};

// The class of the module that DistributedDataParallel wraps when it is made of a Given, which is a reference
// for what has a name; in words why there is none.
template <class Given>
auto module_of() {
  using T = std::remove_cvref_t<Given>;
  constexpr bool never = sizeof(T*) == 0;
  using Nothing = std::type_identity<torch::nn::Module>;
  if constexpr (Holder<T>) {
    return std::type_identity<typename T::ContainedType>{};
  } else if constexpr (std::is_same_v<T, torch::nn::AnyModule>) {
    static_assert(never,
                  "DistributedDataParallel cannot wrap a torch::nn::AnyModule, whose forward has no types: "
                  "give it the module itself, before it goes into the AnyModule.");
    return Nothing{};
  } else if constexpr (std::derived_from<T, DdpBase>) {
    return Nothing{};  // is moved from, and not wrapped; clang 14 asks all the same
  } else if constexpr (SmartPointer<T>) {
    static_assert(
        !(requires { typename T::deleter_type; }) || !std::is_lvalue_reference_v<Given>,
        "DistributedDataParallel cannot share a module with a std::unique_ptr: write *model (the wrapper "
        "does not own it then), std::move(model), or make it with std::make_shared.");
    return std::type_identity<typename T::element_type>{};
  } else if constexpr (std::is_pointer_v<T>) {
    static_assert(never,
                  "DistributedDataParallel takes no plain pointer: write *model (the wrapper does not own it "
                  "then), or make the module with std::make_shared.");
    return Nothing{};
  } else if constexpr (std::derived_from<T, torch::nn::Module>) {
    static_assert(std::is_lvalue_reference_v<Given>,
                  "DistributedDataParallel cannot wrap a temporary module, which is gone at the end of the "
                  "statement: give it std::make_shared<Net>(…), or a module that has a name.");
    static_assert(!std::is_const_v<std::remove_reference_t<Given>>,
                  "DistributedDataParallel cannot train a const module.");
    return std::type_identity<T>{};
  } else if constexpr (Viewer<T>::handle) {
    return std::type_identity<T>{};
  } else {
    static_assert(
        never,
        "DistributedDataParallel wraps a torch::nn::Module: its std::shared_ptr, its holder (TORCH_MODULE), "
        "or the module itself by name; with <lockstep/jit.h> also a torch::jit::Module.");
    return Nothing{};
  }
}
template <class Given>
using ModuleOf = typename decltype(module_of<Given>())::type;

}  // namespace detail

// The part of DistributedDataParallel that does not depend on the module's type.
class DdpBase {
 public:
  // Of the module, for an optimizer: each once, also those that are ignored or frozen.
  std::vector<at::Tensor> parameters() const;
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const;
  void zero_grad(bool set_to_none = true);
  const std::shared_ptr<ProcessGroup>& group() const;
  const detail::ModelView& model() const;

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

  struct Impl;  // src/ddp/ddp.h
  Impl& impl() const { return *impl_; }

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

// For ranks with different numbers of batches. In the scope of the loop:
//
//   {
//     lockstep::Join join(ddp);
//     for (auto& batch : *loader) …
//   }  // a rank that is done goes on for the others until all are; then all take the last one's model
//
// Steps are averaged over the ranks that still have input. All ranks must have one, at the same point. Each
// synchronised forward in it must be followed by one backward pass.
class Join {
 public:
  explicit Join(DdpBase& ddp);
  ~Join() noexcept(false);
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  // What the destructor does: takes part in the others' collectives until all ranks are here. Throws what
  // they throw.
  void finish();

 private:
  DdpBase& ddp_;
  int exceptions_;  // in flight at the beginning
  bool finished_ = false;
};

}  // namespace lockstep
