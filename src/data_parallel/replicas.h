// The module and its copies.
//
// A copy has objects of its own, made by clone(), but not values of its own. Its parameters use the memory of
// the module's (or a fresh copy of it on another device), count their versions with them, and have the
// module's gradient accumulators as their places in the graph: what autograd finds for them goes into the
// module's parameters, summed over the replicas, with nothing added to the graph. Its buffers are fresh
// copies of the module's, since replicas write to them at the same time.
//
// Not thread-safe; the replicas must not run while they are brought up to date.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <torch/nn/module.h>

namespace lockstep::data_parallel {

class Replicas {
 public:
  // One for each device, the first being the module itself; no device: that of the module. Throws UsageError
  // when the module cannot be copied.
  Replicas(std::shared_ptr<torch::nn::Module> module, std::vector<std::optional<at::Device>> devices);

  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
  size_t size() const { return devices_.size(); }
  const std::optional<at::Device>& device(size_t replica) const { return devices_[replica]; }
  torch::nn::Module& operator[](size_t replica) { return replica == 0 ? *module_ : *copies_[replica - 1]; }

  // The next update() makes the copies anew.
  void forget() { copied_.clear(); }
  // Makes the first `count` replicas do what the module would do.
  void update(size_t count);

 private:
  using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

  void copy(const Modules& modules);
  void update_copy(size_t replica, const Modules& modules);

  std::shared_ptr<torch::nn::Module> module_;
  std::vector<std::optional<at::Device>> devices_;
  Modules copies_;
  Modules copied_;  // the module and all below it, as they were when the copies were made
};

}  // namespace lockstep::data_parallel
