// How a GPT is trained: AdamW with weight decay on matrices only, and a learning rate with linear warm-up and
// cosine decay.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numbers>
#include <set>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <lockstep/schedule.h>
#include <lockstep/sharded_optimizer.h>
#include <lockstep/train.h>

namespace mingpt {

struct AdamWSettings {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;
};

// The first parameter group contains the matrices of the linear layers, which decay. The second contains the
// rest, without decay: biases, norms and embeddings.
inline std::vector<torch::optim::OptimizerParamGroup> parameter_groups(const torch::nn::Module& model,
                                                                       const AdamWSettings& settings) {
  std::set<const void*> matrices;
  for (const auto& module : model.modules(false)) {
    if (const auto* linear = module->as<torch::nn::Linear>()) {
      matrices.insert(linear->weight.unsafeGetTensorImpl());
    }
  }
  std::vector<torch::Tensor> decaying, others;
  for (const auto& parameter : model.parameters()) {
    (matrices.contains(parameter.unsafeGetTensorImpl()) ? decaying : others).push_back(parameter);
  }

  const auto options = [&](double weight_decay) {
    return std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions()
                                                            .betas({settings.beta1, settings.beta2})
                                                            .eps(settings.eps)
                                                            .weight_decay(weight_decay));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::move(decaying), options(settings.weight_decay));
  groups.emplace_back(std::move(others), options(0));
  return groups;
}

// LibTorch's optimizer, which averaged gradients reach, or lockstep's, whose work is divided among the ranks.
struct Optimizer {
  Optimizer(lockstep::DdpBase& of, const torch::nn::Module& model, const AdamWSettings& settings, bool divide)
      : ddp(of) {
    auto groups = parameter_groups(model, settings);
    if (divide) {
      auto defaults = std::make_unique<torch::optim::AdamWOptions>();
      sharded = std::make_unique<lockstep::ShardedOptimizer>(of, std::move(groups), std::move(defaults));
    } else {
      plain = std::make_unique<torch::optim::AdamW>(std::move(groups));
    }
  }

  torch::optim::Optimizer& operator*() const { return sharded ? *sharded : *plain; }
  torch::optim::Optimizer* operator->() const { return &**this; }

  // A non-finite gradient is an error.
  void clip(double max_norm) const {
    if (sharded) {
      sharded->clip_grad_norm(max_norm, /*error_if_nonfinite=*/true);
    } else {
      lockstep::clip_grad_norm_(ddp.parameters(), max_norm, 2, /*error_if_nonfinite=*/true);
    }
  }

 private:
  lockstep::DdpBase& ddp;
  std::unique_ptr<lockstep::ShardedOptimizer> sharded;  // one of these two
  std::unique_ptr<torch::optim::Optimizer> plain;
};

struct Schedule {
  double peak = 1e-3;
  double floor = 1e-4;  // at the last step
  int64_t warmup = 100, steps = 1000;
};

// The learning rate of a step, counted from 0.
inline double learning_rate(int64_t step, const Schedule& schedule) {
  if (step < schedule.warmup) {
    return schedule.peak * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup);
  }
  const auto falling = std::max<int64_t>(schedule.steps - 1 - schedule.warmup, 1);
  const double way =
      std::min(static_cast<double>(step - schedule.warmup) / static_cast<double>(falling), 1.0);
  return schedule.floor + (schedule.peak - schedule.floor) * (1 + std::cos(std::numbers::pi * way)) / 2;
}

inline lockstep::Scheduler make_scheduler(torch::optim::Optimizer& optimizer, const Schedule& schedule) {
  return {optimizer, [schedule](int64_t step, double) { return learning_rate(step, schedule); }};
}

}  // namespace mingpt
