// The implementation of ShardedOptimizer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <lockstep/sharded_optimizer.h>

#include "compat/optimizer.h"
#include "ddp/ddp.h"
#include "optim/fit.h"
#include "sharded/bucket_update.h"

namespace lockstep {

// Parameters whose gradients are held in buckets (reducer/updater.h) are updated there. All others (sparse
// gradients, other dtypes, a world of one) are left to LibTorch's optimizer, the rest.
struct ShardedOptimizer::Impl final : reducer::Updater, ddp::SharedOptimizer {
  Impl(DdpBase::Impl& of, ShardedOptimizer& optimizer) : ddp(of), owner(optimizer) {}

  DdpBase::Impl& ddp;
  ShardedOptimizer& owner;
  std::optional<float> clip;  // for the next step

  void check_groups() const;
  // Now and then: the ranks must step with the same options. All ranks must call it; it blocks.
  void compare_options();
  void step();
  double clip_grad_norm(double max_norm, bool error_if_nonfinite);
  // ddp::SharedOptimizer (options.cc)
  void shadow_step(int leader) override;
  void shadow_clip(int leader) override;
  // Under Join, the ranks without input take these from those that have some.
  void share_options(int leader);
  double share_max_norm(double mine, int leader);

  // reducer::Updater
  void laid_out(const std::vector<reducer::Held>& held) override;
  comm::Transform& transform(size_t index, const reducer::Held& held) override;

  // State (state.cc).
  std::unique_ptr<torch::optim::Optimizer> to_plain(Receivers receivers, States states);
  std::unique_ptr<torch::optim::Optimizer> blank() const;
  int64_t state_bytes() const;
  Masters masters(Receivers receivers);
  void set_masters(const Masters& masters);
  void from_plain(torch::optim::Optimizer& plain);

 private:
  // Before each use: groups may have got more parameters, and the reducer other ones.
  void look_at_parameters();
  // All numbers in the options, by group; `visit` gets the name and the reference of each.
  template <class Visit>
  void visit_options(Visit&& visit);
  void check_changes();
  [[noreturn]] void refuse_nonfinite(double norm) const;
  std::vector<at::Tensor> rest_parameters() const;
  void step_rest();
  // Of the averages of the other parameters, over all ranks, in their order.
  double sum_of_squares();
  const torch::optim::OptimizerOptions* options_of(const at::Tensor& parameter) const;
  sharded::BucketUpdate::Plan plan_of(sharded::BucketUpdate& bucket, const reducer::Held::Slot& slot);
  optim::Update update_for(const torch::optim::OptimizerOptions& group);
  void make_rest();
  std::vector<at::Tensor> clipped_rest() const;
  const at::Tensor& parameter_of(const reducer::Held::Slot& slot) const;

  // State.
  using ParamState = std::unique_ptr<torch::optim::OptimizerParamState>;
  void check_complete() const;
  ParamState gather_slot(const sharded::BucketUpdate& bucket, size_t slot, Receivers receivers,
                         States states) const;
  void take_from_pending(sharded::BucketUpdate& bucket);
  void take_state_of(torch::optim::Optimizer& plain);

  std::vector<std::unique_ptr<sharded::BucketUpdate>> buckets_;
  std::unordered_map<const void*, int64_t> steps_;  // by parameter; how often it was updated
  // State that has no place yet: restored, or from other buckets. By parameter, whole.
  std::unordered_map<const void*, ParamState> pending_;
  std::unordered_map<const void*, at::Tensor> pending_masters_;

  std::unordered_map<const void*, size_t> groups_;  // by parameter
  std::unordered_set<const void*> held_;            // parameters
  std::vector<std::vector<at::Tensor>> others_;     // the rest, by group
  std::vector<std::vector<at::Tensor>> others_of_rest_;
  std::unique_ptr<torch::optim::Optimizer> rest_;
  std::unordered_map<int, optim::Fit> fits_;  // by operations
  int64_t step_number_ = 0;
};

}  // namespace lockstep
