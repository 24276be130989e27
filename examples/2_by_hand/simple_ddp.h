// Data parallelism from scratch, on bare collectives: what DistributedDataParallel does, without what makes
// it fast. Gradients travel one by one, after backward, and nobody computes meanwhile.
#pragma once

#include <memory>
#include <stdexcept>
#include <utility>

#include <torch/nn/module.h>

#include <lockstep/process_group.h>

template <class Module>
class SimpleDistributedDataParallel {
 public:
  // Replicas that begin differently never become the same: refuse them.
  SimpleDistributedDataParallel(Module module, std::shared_ptr<lockstep::ProcessGroup> group)
      : module_(std::move(module)), group_(std::move(group)) {
    if (!is_same_everywhere()) {
      throw std::runtime_error(
          "the parameters are not the same on all ranks: set the same seed before the model is made");
    }
  }

  template <class... Args>
  auto operator()(Args&&... args) {
    return module_->forward(std::forward<Args>(args)...);
  }
  void train() { module_->train(); }
  void eval() { module_->eval(); }

  // After backward: the mean of all ranks' gradients takes the place of this rank's.
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

  // Off as long as it lives; then as it was.
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

  // All ranks must call it. Rank 0's parameters are compared with everybody's, bit for bit.
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
