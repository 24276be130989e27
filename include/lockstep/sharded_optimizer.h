// An optimizer whose work and state are divided among the ranks of a DistributedDataParallel: each rank
// reduces its part of the gradients and updates its part of the parameters in the same pass over memory, and
// all ranks receive the result. docs/optimizers.md explains when that is faster.
#pragma once

#include <concepts>
#include <memory>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include <lockstep/ddp.h>

namespace lockstep {

struct ShardedOptions {
  // After backward, .grad is the average over the ranks, as without this optimizer. false: it is this rank's
  // own gradient, which costs one pass over memory less.
  bool average_gradients = false;
  // Parameters in bfloat16 or half: each rank keeps its part of them in float, too, and updates these copies,
  // so that steps smaller than a parameter's last bit are not lost. The state is in float. false, or a world
  // of one: LibTorch's optimizer steps them, on every rank.
  bool master_parameters = false;
};

// Takes the options of SGD, Adam, AdamW, Adagrad and RMSprop. The parameters get the same bits on all ranks,
// and the same bits as those of LibTorch's own optimizer on the averaged gradients. Like every optimizer, it
// has parameter groups with options of their own, for schedules of the learning rate.
//
//   lockstep::ShardedOptimizer optimizer(ddp, torch::optim::AdamWOptions(3e-4));
//
// All ranks must construct it, and call step() and clip_grad_norm() the same number of times, after
// synchronised backward passes. Under Join, the ranks that have no input left take part in Join::finish(),
// with the options (learning rate …) of those that have some. The parameters move into memory of the group,
// once, at the end of the first backward pass; the tensors of the module remain the same objects. `ddp` must
// outlive it; there can be only one for each `ddp` at a time.
class ShardedOptimizer : public torch::optim::Optimizer {
 public:
  // Of all parameters of `ddp`.
  template <std::derived_from<torch::optim::OptimizerOptions> Options>
  ShardedOptimizer(DdpBase& ddp, const Options& options, ShardedOptions sharded = {})
      : ShardedOptimizer(ddp, {torch::optim::OptimizerParamGroup(ddp.parameters())},
                         std::make_unique<Options>(options), sharded) {}
  // Of these groups; `defaults` for groups without options.
  ShardedOptimizer(DdpBase& ddp, std::vector<torch::optim::OptimizerParamGroup> groups,
                   std::unique_ptr<torch::optim::OptimizerOptions> defaults, ShardedOptions sharded = {});
  ~ShardedOptimizer() override;

  // Blocks until all ranks have called it.
  torch::Tensor step(LossClosure closure = nullptr) override;

  // In place of clip_grad_norm_, between backward() and step(): the next step scales the gradients so that
  // the norm of all of them together is at most max_norm. Returns the norm before scaling. With
  // `error_if_nonfinite`, throws Error on all ranks if the norm is infinite or NaN. Blocks until all ranks
  // have called it.
  double clip_grad_norm(double max_norm, bool error_if_nonfinite = false);

  // Of the state that this rank keeps, in memory. Does not communicate.
  int64_t state_bytes() const;

  // LibTorch's own optimizer of the same parameters, with these options and the state of all ranks, to go on
  // with it or to save it. All ranks must call it; it blocks. Null on ranks that are not to receive it.
  // States of master_parameters are in float; LibTorch's optimizers need them in the type of the parameters
  // (States::AsParameters).
  enum class Receivers { AllRanks, Rank0 };
  enum class States { AsParameters, Float };
  std::unique_ptr<torch::optim::Optimizer> to_plain(Receivers receivers = Receivers::AllRanks,
                                                    States states = States::AsParameters);
  // The same without state. Does not communicate.
  std::unique_ptr<torch::optim::Optimizer> blank_plain() const;
  // Takes over the options and the state of such an optimizer, which must be the same on all ranks; each rank
  // keeps its part. Does not communicate.
  void from_plain(torch::optim::Optimizer& plain);

  // The float copies of ShardedOptions::master_parameters, with their parameters. All ranks must call it; it
  // blocks. Empty on ranks that are not to receive them, and before the first step. set_masters() takes them
  // over, the same ones on all ranks; it does not communicate. A copy that does not round to its parameter is
  // replaced by the parameter in the next step.
  using Masters = std::vector<std::pair<at::Tensor, at::Tensor>>;
  Masters masters(Receivers receivers = Receivers::AllRanks);
  void set_masters(const Masters& masters);

  // Of the state of all ranks, as LibTorch's optimizer: all ranks must call it. Only one of them should write
  // the archive to a file.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
