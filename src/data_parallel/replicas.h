// The module and its copies.
//
// A copy consists of objects of its own, made by clone(), but its parameters use the memory of the module's
// parameters (or a fresh copy of it on another device) and share their version counters. In the graph, they
// are represented by the gradient accumulators of the module's parameters. So autograd adds the gradients of
// all replicas to the module's parameters, without additional nodes in the graph. The buffers of a copy are
// fresh copies, because the replicas write to them concurrently.
//
// Not thread-safe. The replicas must not run during an update.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <torch/nn/module.h>

namespace lockstep::data_parallel {

class Replicas {
 public:
  // One replica per device; the first is the module itself. No device: that of the module. Throws UsageError
  // if the module cannot be copied.
  Replicas(std::shared_ptr<torch::nn::Module> module, std::vector<std::optional<at::Device>> devices);

  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
  size_t size() const { return devices_.size(); }
  const std::optional<at::Device>& device(size_t replica) const { return devices_[replica]; }
  torch::nn::Module& operator[](size_t replica) { return replica == 0 ? *module_ : *copies_[replica - 1]; }

  // Makes the next update() create new copies.
  void forget() { copied_.clear(); }
  // Copies the module's current state to the first `count` replicas.
  void update(size_t count);

 private:
  using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

  void copy(const Modules& modules);
  void update_copy(size_t replica, const Modules& modules);

  std::shared_ptr<torch::nn::Module> module_;
  std::vector<std::optional<at::Device>> devices_;
  Modules copies_;
  Modules copied_;  // the module and its submodules at the time of copying
};

}  // namespace lockstep::data_parallel
