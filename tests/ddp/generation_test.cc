// A wrapper, its batch norms, sampler and snapshots follow their group's handle to another generation.
#include "comm/generation.h"

#include <filesystem>
#include <numeric>

#include "ddp/training.h"
#include "support/message_of.h"
#include "support/scratch_folder.h"

namespace lockstep::testing {
namespace {

class GenerationTest : public DdpTest {};

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

template <class Net>
void train_step(DistributedDataParallel<Net>& ddp, torch::optim::Optimizer& optimizer, ProcessGroup& group,
                int step) {
  const auto mine = share_of(global_batch(24, step), group);
  optimizer.zero_grad();
  loss_of(ddp(mine), mine).backward();
  optimizer.step();
}

torch::optim::Adam adam_of(const DdpBase& ddp) { return torch::optim::Adam(ddp.parameters(), 1e-2); }

void expect_same_parameters(const DdpBase& a, const DdpBase& b) {
  const auto left = a.parameters(), right = b.parameters();
  for (size_t i = 0; i < left.size(); ++i) EXPECT_TRUE(same_bits(left[i], right[i])) << "parameter " << i;
}

TEST_P(GenerationTest, TrainingGoesOnBitForBit) {
  run([](ProcessGroup& group) {
    const auto everybody = first_ranks(group.world_size());
    const auto handle = group.new_group(everybody);
    DistributedDataParallel moved(make_net(), handle);
    DistributedDataParallel stayed(make_net(), default_group());
    auto moved_adam = adam_of(moved), stayed_adam = adam_of(stayed);
    const void* memory = nullptr;
    for (int step = 0; step < 9; ++step) {
      if (step % 3 == 2) comm::point_at(*handle, *group.new_group(everybody));
      train_step(moved, moved_adam, group, step);
      train_step(stayed, stayed_adam, group, step);
      expect_same_parameters(moved, stayed);
      const void* now = moved.parameters().front().grad().data_ptr();
      if (step > 0) {
        EXPECT_EQ(now, memory) << "bucket memory belongs to the process";
      }
      memory = now;
    }
    moved.verify_replicas();
  });
}

struct NetWithNorm : torch::nn::Module {
  NetWithNorm()
      : first(register_module("first", torch::nn::Linear(8, 6))),
        norm(register_module("norm", torch::nn::BatchNorm1d(6))),
        second(register_module("second", torch::nn::Linear(6, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return second(torch::relu(norm(first(x)))); }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear second;
};

std::shared_ptr<NetWithNorm> make_net_with_norm() {
  torch::manual_seed(3);
  return std::make_shared<NetWithNorm>();
}

TEST_P(GenerationTest, SynchronisedBatchNormsFollow) {
  run([](ProcessGroup& group) {
    const auto everybody = first_ranks(group.world_size());
    const auto handle = group.new_group(everybody);
    auto model = make_net_with_norm(), reference = make_net_with_norm();
    convert_sync_batchnorm(model, handle);
    convert_sync_batchnorm(reference, default_group());
    DistributedDataParallel moved(model, handle);
    DistributedDataParallel stayed(reference, default_group());
    auto moved_adam = adam_of(moved), stayed_adam = adam_of(stayed);
    for (int step = 0; step < 6; ++step) {
      if (step == 3) comm::point_at(*handle, *group.new_group(everybody));
      train_step(moved, moved_adam, group, step);
      train_step(stayed, stayed_adam, group, step);
    }
    expect_same_parameters(moved, stayed);
    EXPECT_TRUE(same_bits(model->norm->running_mean, reference->norm->running_mean));
  });
}

TEST_P(GenerationTest, ASmallerWorldSharesTheDataAndAveragesOverItsRanks) {
  run([](ProcessGroup& group) {
    const int fewer = group.world_size() - 1;
    const auto handle = group.new_group(first_ranks(group.world_size()));
    DistributedDataParallel ddp(make_net(), handle);
    DistributedSampler sampler(30, handle, {.shuffle = false});
    EXPECT_EQ(sampler.size(), 30u / group.world_size());
    const auto batch = global_batch(24, 1);
    const auto mine = share_of(batch, group);
    loss_of(ddp(mine), mine).backward();

    const auto smaller = group.new_group(first_ranks(fewer));
    if (!smaller) return;
    comm::point_at(*handle, *smaller);
    sampler.set_epoch(1);
    EXPECT_EQ(sampler.size(), (30u + fewer - 1) / fewer);
    EXPECT_EQ(sampler.indices().front(), static_cast<size_t>(smaller->rank()));
    ddp.zero_grad();
    const auto share = share_of(batch, *smaller);
    loss_of(ddp(share), share).backward();

    auto alone = make_net();
    loss_of(alone->forward(batch), batch).backward();
    expect_close(gradients_of(ddp.parameters()), gradients_of(alone->parameters()));
    expect_same_on_all_ranks(*smaller, gradients_of(ddp.parameters()));
  });
}

// The pass is dropped and the group ends; the model lives on with the next group.
TEST_P(GenerationTest, TheModelOutlivesAGroupThatHasFailed) {
  run([](ProcessGroup& group) {
    const auto everybody = first_ranks(group.world_size());
    const auto handle = group.new_group(everybody);
    const auto next = group.new_group(everybody);
    DistributedDataParallel moved(make_net(), handle);
    DistributedDataParallel stayed(make_net(), default_group());
    auto moved_adam = adam_of(moved), stayed_adam = adam_of(stayed);
    for (int step = 0; step < 2; ++step) {
      train_step(moved, moved_adam, group, step);
      train_step(stayed, stayed_adam, group, step);
    }
    const auto mine = share_of(global_batch(24, 2), group);
    moved_adam.zero_grad();
    const auto loss = loss_of(moved(mine), mine);
    group.barrier();
    if (group.rank() == 1) handle->poison(Error("this rank cannot go on"));
    EXPECT_THAT(message_of<Error>([&] { loss.backward(); }), ::testing::HasSubstr("cannot go on"));
    comm::point_at(*handle, *next);
    for (int step = 2; step < 5; ++step) {
      train_step(moved, moved_adam, group, step);
      train_step(stayed, stayed_adam, group, step);
    }
    expect_same_parameters(moved, stayed);
  });
}

TEST_P(GenerationTest, SnapshotsFollow) {
  const ScratchFolder folder;
  run([&](ProcessGroup& group) {
    const auto everybody = first_ranks(group.world_size());
    const auto handle = group.new_group(everybody);
    DistributedDataParallel ddp(make_net(), handle);
    Snapshots snapshots(folder.path() / "run", handle);
    snapshots.save(ddp, {.epoch = 1});
    comm::point_at(*handle, *group.new_group(everybody));
    snapshots.save(ddp, {.epoch = 2});
    EXPECT_EQ(snapshots.resume(ddp).epoch, 2);
  });
}

LOCKSTEP_DDP_WORLDS(GenerationTest, World("shm", 2), World("shm", 3), World("gloo", 2), World("hybrid", 3));

}  // namespace
}  // namespace lockstep::testing
