// Trains one replica of a model in each process: gradients are averaged during backward, so that all
// replicas take the same steps.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <lockstep/comm_hook.h>
#include <lockstep/ddp_stats.h>
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

namespace detail {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// What DDP sees of a module.
struct ModelView {
  NamedTensors parameters;
  std::function<NamedTensors()> buffers;  // asked for anew each time: modules reassign them
  std::function<bool()> is_training;
  std::vector<std::string> sparse;  // parameters that will get sparse gradients
};
ModelView view_of(const std::shared_ptr<torch::nn::Module>& module);

// How to look at a module that is not a torch::nn::Module: lockstep/jit.h has one for TorchScript's.
template <class Module>
struct Viewer {
  static ModelView view(const std::shared_ptr<Module>& module) { return view_of(module); }
};

}  // namespace detail

// The part of DistributedDataParallel that does not depend on the module's type.
class DdpBase {
 public:
  // Of the module, for an optimizer: each once, also those that are ignored or frozen.
  std::vector<at::Tensor> parameters() const;
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

 private:
  std::unique_ptr<Impl> impl_;
};

// All ranks must construct it, with the same model and options, and make the same synchronised passes.
//
// Gradients are final when backward() returns. Errors name the parameters; the first one on any rank ends the
// step on all of them.
template <class Module>
class DistributedDataParallel : public DdpBase {
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

  template <class... Args>
  auto forward(Args&&... args) {
    before_forward();
    if constexpr (std::is_void_v<decltype(module_->forward(std::forward<Args>(args)...))>) {
      module_->forward(std::forward<Args>(args)...);
      after_forward({});
    } else {
      auto output = module_->forward(std::forward<Args>(args)...);
      if (watches_outputs()) after_forward(tensors_in(output));
      return output;
    }
  }
  template <class... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  Module* operator->() const { return module_.get(); }
  const std::shared_ptr<Module>& module() const { return module_; }

  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }

 private:
  std::shared_ptr<Module> module_;
};

template <class Module>
DistributedDataParallel(std::shared_ptr<Module>) -> DistributedDataParallel<Module>;
template <class Module>
DistributedDataParallel(std::shared_ptr<Module>, std::shared_ptr<ProcessGroup>)
    -> DistributedDataParallel<Module>;
template <class Module>
DistributedDataParallel(std::shared_ptr<Module>, std::shared_ptr<ProcessGroup>, DdpOptions)
    -> DistributedDataParallel<Module>;
template <class Holder>
DistributedDataParallel(Holder) -> DistributedDataParallel<typename Holder::ContainedType>;
template <class Holder>
DistributedDataParallel(Holder, std::shared_ptr<ProcessGroup>)
    -> DistributedDataParallel<typename Holder::ContainedType>;
template <class Holder>
DistributedDataParallel(Holder, std::shared_ptr<ProcessGroup>, DdpOptions)
    -> DistributedDataParallel<typename Holder::ContainedType>;

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
