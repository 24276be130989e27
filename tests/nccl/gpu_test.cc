// Real CUDA devices and NCCL, one device for each of two ranks. Skipped where there are none. Written without
// such a machine: see docs/cuda.md for what has never run.
#include <csignal>
#include <memory>

#include <ATen/ATen.h>

#include <lockstep/lockstep.h>

#include "launch/limits.h"
#include "nccl/engine.h"
#include "nccl/net.h"
#include "support/message_of.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr int kRanks = 2;

class Gpus : public ::testing::Test {
 protected:
  void SetUp() override {
    // Without a call of CUDA, after which the ranks could not be forked.
    if (!nccl::has_nccl()) GTEST_SKIP() << "this LibTorch was built without NCCL";
    if (launch::available_gpus() < kRanks) GTEST_SKIP() << "there are not " << kRanks << " GPUs";
  }
};

at::Tensor on_device(const ProcessGroup& group, const at::Tensor& tensor) {
  return tensor.to(group.device());
}

TEST_F(Gpus, EachRankHasItsOwn) {
  run_ranks(kRanks, "nccl", [](ProcessGroup& group) {
    EXPECT_EQ(group.backend(), "shm+nccl");
    EXPECT_EQ(group.device(), c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(group.local_rank())));
    EXPECT_EQ(at::empty({1}, at::kCUDA).device(), group.device());  // the current device
    const auto other = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(1 - group.local_rank()));
    EXPECT_THAT(message_of<UsageError>([&] { group.all_reduce(at::ones({1}, other)); }),
                HasSubstr("the device of this rank is " + group.device().str()));
  });
}

TEST_F(Gpus, EveryCallHasTheRightResult) {
  run_ranks(kRanks, "auto", [](ProcessGroup& group) {
    const auto base = on_device(group, at::arange(8, at::kFloat));
    const auto mine = [&] { return base * (group.rank() + 1); };
    auto tensor = mine();
    group.all_reduce(tensor);
    EXPECT_TRUE(at::equal(tensor, base * 3));
    tensor = mine();
    group.all_reduce(tensor, ReduceOp::Avg);
    EXPECT_TRUE(at::equal(tensor, base * 1.5));
    tensor = mine();
    group.broadcast(tensor, 1);
    EXPECT_TRUE(at::equal(tensor, base * 2));
    const auto gathered = group.all_gather(mine());
    EXPECT_TRUE(at::equal(gathered[1], base * 2));
    auto part = at::empty({4}, base.options());
    group.reduce_scatter_tensor(part, mine());
    EXPECT_TRUE(at::equal(part, base.narrow(0, 4 * group.rank(), 4) * 3));
    auto swapped = at::empty_like(base);
    group.all_to_all_single(swapped, mine());
    EXPECT_TRUE(at::equal(swapped.narrow(0, 4, 4), base.narrow(0, 4 * group.rank(), 4) * 2));
    const auto on_root = group.gather(mine(), 0);
    auto scattered = at::empty_like(base);
    group.scatter(scattered, on_root, 0);
    EXPECT_TRUE(at::equal(scattered, mine()));
    group.rank() == 0 ? group.send(mine(), 1) : group.recv(tensor, 0);
    EXPECT_TRUE(group.rank() == 0 || at::equal(tensor, base));
    for (const auto dtype : {at::kHalf, at::kBFloat16, at::kLong, at::kComplexFloat}) {
      auto ones = at::ones({3}, base.options().dtype(dtype));
      group.all_reduce(ones);
      EXPECT_EQ(ones.to(at::kFloat)[0].item<float>(), 2) << c10::toString(dtype);
    }
    auto on_cpu = at::ones({2});
    group.all_reduce(on_cpu);
    EXPECT_EQ(on_cpu[0].item<float>(), 2);
    group.barrier();
  });
}

at::Tensor batch_of(int step, int64_t rows) {
  return torch::sin(torch::arange(rows * 8, at::kFloat).view({rows, 8}) * 0.37 + step);
}

// One process on one device with the whole batch, and two with halves of it, learn the same.
TEST_F(Gpus, TrainingEqualsThatOfOneProcess) {
  run_ranks(kRanks, "auto", [](ProcessGroup& group) {
    const auto net = [&] {
      torch::manual_seed(1);
      auto made = std::make_shared<NormNet>();
      made->to(group.device());
      return made;
    };
    auto alone = net();
    DistributedDataParallel ddp(net(), default_group());
    convert_sync_batchnorm(ddp.module(), default_group());
    torch::optim::SGD one(alone->parameters(), 0.1), many(ddp.parameters(), 0.1);
    for (int step = 0; step < 5; ++step) {
      const auto batch = on_device(group, batch_of(step, 16));
      one.zero_grad();
      alone->forward(batch).pow(2).mean().backward();
      one.step();
      ddp.zero_grad();
      ddp(batch.narrow(0, 8 * group.rank(), 8)).pow(2).mean().backward();
      many.step();
    }
    const auto expected = alone->parameters(), learnt = ddp.parameters();
    for (size_t i = 0; i < learnt.size(); ++i) {
      EXPECT_TRUE(at::allclose(learnt[i], expected[i], 1e-4, 1e-5)) << "parameter " << i;
    }
    ddp.verify_replicas();
    EXPECT_GT(clip_grad_norm_(ddp.parameters(), 1e9), 0);
  });
}

TEST_F(Gpus, HooksAndSparseGradients) {
  run_ranks(kRanks, "auto", [](ProcessGroup& group) {
    for (const auto& hook :
         {hooks::fp16_compress(), hooks::bf16_compress(), hooks::power_sgd({.rank = 2, .start_step = 1})}) {
      auto net = std::make_shared<NormNet>();
      net->to(group.device());
      DistributedDataParallel ddp(net, default_group());
      ddp.register_comm_hook(hook);
      for (int step = 0; step < 3; ++step) {
        ddp.zero_grad();
        ddp(on_device(group, batch_of(step, 8))).sum().backward();
      }
    }
    torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 3).sparse(true));
    embedding->to(group.device());
    DistributedDataParallel ddp(embedding, default_group());
    ddp(on_device(group, at::tensor({group.rank(), 5}, at::kLong))).sum().backward();
    const auto gradient = embedding->weight.grad().to_dense();
    EXPECT_EQ(gradient[5][0].item<float>(), 1);
    EXPECT_EQ(gradient[0][0].item<float>(), 0.5);
    EXPECT_EQ(gradient[1][0].item<float>(), 0.5);
  });
}

// The device of rank 0 waits for a rank that has ended. The wait for the device ends nevertheless.
TEST_F(Gpus, ARankThatEndsDoesNotBlockTheOthers) {
  const auto outcomes = start_ranks(kRanks, [](int rank) {
    const auto group = init_process_group({.backend = "nccl", .timeout = 60s});
    auto tensor = at::ones({1 << 20}, group->device());
    group->all_reduce(tensor);
    EXPECT_EQ(tensor[0].item<float>(), 2);
    if (rank == 1) ::raise(SIGKILL);
    EXPECT_THAT(message_of<PeerLostError>([&] {
                  for (;;) {
                    group->all_reduce(tensor);
                    tensor.sum().item<float>();
                  }
                }),
                HasSubstr("rank 1"));
  });
  EXPECT_EQ(outcomes[0].exit_status, 0) << outcomes[0].describe();
}

}  // namespace
}  // namespace lockstep::testing
