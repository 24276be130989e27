// N ranks with a part of the batch each train like one process with the whole batch. At every step, the ranks
// are bitwise equal.
#include "ddp/training.h"

namespace lockstep::testing {
namespace {

constexpr int kSteps = 10;

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const Tensors&)>;

const std::vector<std::pair<const char*, MakeOptimizer>>& optimizers() {
  static const std::vector<std::pair<const char*, MakeOptimizer>> all = {
      {"SGD", [](const Tensors& p) { return std::make_unique<torch::optim::SGD>(p, 0.05); }},
      {"momentum",
       [](const Tensors& p) {
         return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.05).momentum(0.9));
       }},
      {"Adam", [](const Tensors& p) { return std::make_unique<torch::optim::Adam>(p, 1e-2); }},
  };
  return all;
}

class Equality : public DdpTest {};

TEST_P(Equality, WithOneProcess) {
  run([](ProcessGroup& group) {
    for (const auto& [name, make] : optimizers()) {
      SCOPED_TRACE(name);
      auto alone = make_net();
      DistributedDataParallel ddp(make_net(), default_group());
      const auto optimizer = make(ddp.parameters());
      const auto reference = make(alone->parameters());
      for (int step = 0; step < kSteps; ++step) {
        const auto batch = global_batch(24, step);
        reference->zero_grad();
        loss_of(alone->forward(batch), batch).backward();
        reference->step();

        optimizer->zero_grad();
        const auto mine = share_of(batch, group);
        loss_of(ddp(mine), mine).backward();
        // When backward() returns, the gradients are final: the average over all ranks.
        expect_close(gradients_of(ddp.parameters()), gradients_of(alone->parameters()));
        expect_same_on_all_ranks(group, gradients_of(ddp.parameters()));
        optimizer->step();
        expect_same_on_all_ranks(group, ddp.parameters());
      }
      expect_close(ddp.parameters(), alone->parameters(), 1e-4);
      EXPECT_EQ(ddp.stats().steps, group.world_size() == 1 ? 0 : kSteps);
    }
  });
}

// The converse: modules trained without DistributedDataParallel.
TEST_P(Equality, WithoutSynchronisationTheReplicasDriftApart) {
  run([](ProcessGroup& group) {
    if (group.world_size() == 1) return;
    auto net = make_net();
    torch::optim::SGD optimizer(net->parameters(), 0.05);
    const auto mine = share_of(global_batch(24, 0), group);
    loss_of(net->forward(mine), mine).backward();
    optimizer.step();
    const auto all = group.all_gather(net->first->weight.detach().clone());
    EXPECT_FALSE(same_bits(all[0], all[1]));
  });
}

// Unsynchronised passes accumulate locally; the next synchronised pass averages the whole sum.
TEST_P(Equality, AccumulationOverMicroBatchesIsTheBigBatch) {
  run([](ProcessGroup& group) {
    constexpr int kMicro = 4;
    auto alone = make_net();
    DistributedDataParallel ddp(make_net(), default_group());
    torch::optim::Adam optimizer(ddp.parameters(), 1e-2), reference(alone->parameters(), 1e-2);
    for (int step = 0; step < 5; ++step) {
      const auto batch = global_batch(96, step);
      reference.zero_grad();
      loss_of(alone->forward(batch), batch).backward();
      reference.step();

      optimizer.zero_grad();
      const auto mine = share_of(batch, group);
      for (int micro = 0; micro < kMicro; ++micro) {
        ddp.set_gradient_sync(micro + 1 == kMicro);
        const auto part = mine.chunk(kMicro)[micro];
        (loss_of(ddp(part), part) / kMicro).backward();
      }
      expect_close(gradients_of(ddp.parameters()), gradients_of(alone->parameters()));
      optimizer.step();
      expect_same_on_all_ranks(group, ddp.parameters());
    }
  });
}

LOCKSTEP_DDP_WORLDS(Equality, World("shm", 1), World("shm", 2), World("shm", 3), World("shm", 4),
                    World("gloo", 2), World("gloo", 3), World("hybrid", 2), World("hybrid", 3),
                    World("hybrid", 4));

}  // namespace
}  // namespace lockstep::testing
