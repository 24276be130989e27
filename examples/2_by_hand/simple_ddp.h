// Data parallelism from scratch, on plain collectives. It does what DistributedDataParallel does, but slowly:
// gradients are sent one by one, after backward, and no rank computes in the meantime.
#pragma once

#include <memory>
#include <stdexcept>
#include <utility>

#include <torch/nn/module.h>

#include <lockstep/process_group.h>

template <class Module>
class SimpleDistributedDataParallel {
 public:
  // Replicas that start different never become equal, so the constructor rejects them.
  SimpleDistributedDataParallel(Module module, std::shared_ptr<lockstep::ProcessGroup> group)
      : module_(std::move(module)), group_(std::move(group)) {
    if (!is_same_everywhere()) {
      throw std::runtime_error(
          "the parameters are not the same on all ranks: set the same seed before you create the model");
    }
  }

  template <class... Args>
  auto operator()(Args&&... args) {
    return module_->forward(std::forward<Args>(args)...);
  }
  void train() { module_->train(); }
  void eval() { module_->eval(); }

  // Call it after backward. Replaces this rank's gradients by the mean over all ranks.
  void sync_gradients() {
    if (!sync_) return;
    for (auto& parameter : module_->parameters()) {
      auto gradient = parameter.grad();
      if (!gradient.defined()) continue;
      group_->all_reduce(gradient, lockstep::ReduceOp::Sum);
      gradient /= group_->world_size();
    }
  }

  void enable_gradient_sync() { sync_ = true; }
  void disable_gradient_sync() { sync_ = false; }
  bool gradient_sync() const { return sync_; }

  // Turns synchronisation off during its lifetime, then restores the previous state.
  class NoSync {
   public:
    explicit NoSync(bool& sync) : sync_(sync), before_(std::exchange(sync, false)) {}
    ~NoSync() { sync_ = before_; }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    bool& sync_;
    bool before_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(sync_); }

  // All ranks must call it. Compares every rank's parameters with rank 0's, bit for bit.
  bool is_same_everywhere() const { return greatest_difference() == 0; }
  double greatest_difference() const {
    const torch::NoGradGuard no_grad;
    auto greatest = torch::zeros({1}, torch::kDouble);
    for (const auto& parameter : module_->parameters()) {
      auto of_rank_0 = parameter.detach().clone();
      group_->broadcast(of_rank_0, 0);
      greatest = torch::max(greatest, (parameter - of_rank_0).abs().max().to(torch::kDouble));
    }
    group_->all_reduce(greatest, lockstep::ReduceOp::Max);
    return greatest.item<double>();
  }

 private:
  Module module_;
  std::shared_ptr<lockstep::ProcessGroup> group_;
  bool sync_ = true;
};
