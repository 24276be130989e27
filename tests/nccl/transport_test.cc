// The transport for NCCL, with a stand-in for NCCL (nccl_like.h).
#include "nccl/transport.h"

#include <csignal>
#include <thread>
#include <unistd.h>

#include <ATen/ATen.h>

#include <lockstep/lockstep.h>

#include "launch/limits.h"
#include "nccl/nccl_like.h"
#include "nccl/net.h"
#include "support/message_of.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

void run(int world, const std::function<void(ProcessGroup& group, Seen& seen)>& body) {
  run_ranks(world, "shm", [&](ProcessGroup& parent) {
    const NcclLikeGroup like(parent);
    body(*like.group, *like.seen);
  });
}

at::Tensor numbers(const ProcessGroup& group) { return at::arange(6, at::kFloat) * (group.rank() + 1); }

TEST(NcclTransport, EveryCallHasTheRightResult) {
  run(3, [](ProcessGroup& group, Seen&) {
    const auto base = at::arange(6, at::kFloat);
    auto tensor = numbers(group);
    group.all_reduce(tensor);
    EXPECT_TRUE(at::equal(tensor, base * 6));
    tensor = numbers(group);
    group.all_reduce(tensor, ReduceOp::Avg);
    EXPECT_TRUE(at::equal(tensor, base * 2));
    tensor = numbers(group);
    group.reduce(tensor, 1, ReduceOp::Max);
    EXPECT_TRUE(group.rank() != 1 || at::equal(tensor, base * 3));
    tensor = numbers(group);
    group.broadcast(tensor, 2);
    EXPECT_TRUE(at::equal(tensor, base * 3));

    const auto gathered = group.all_gather(numbers(group));
    for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(at::equal(gathered[rank], base * (rank + 1)));
    const auto on_root = group.gather(numbers(group), 0);
    ASSERT_EQ(on_root.size(), group.rank() == 0 ? 3 : 0);
    EXPECT_TRUE(group.rank() != 0 || at::equal(on_root[2], base * 3));
    auto part = at::zeros({6});
    group.scatter(part, group.rank() == 0 ? on_root : std::vector<at::Tensor>{}, 0);
    EXPECT_TRUE(at::equal(part, numbers(group)));
    auto mean = at::zeros({2});
    group.reduce_scatter_tensor(mean, numbers(group), ReduceOp::Avg);
    EXPECT_TRUE(at::equal(mean, base.narrow(0, 2 * group.rank(), 2) * 2));
    auto swapped = at::zeros({6});
    group.all_to_all_single(swapped, numbers(group));
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(
          at::equal(swapped.narrow(0, 2 * rank, 2), base.narrow(0, 2 * group.rank(), 2) * (rank + 1)));
    }
    if (group.rank() == 0) group.send(numbers(group), 1);
    auto received = at::zeros({6});
    if (group.rank() == 1) group.recv(received, 0);
    EXPECT_TRUE(group.rank() != 1 || at::equal(received, base));
    group.barrier();
  });
}

TEST(NcclTransport, TensorsWithStridesAndAsynchronousCalls) {
  run(2, [](ProcessGroup& group, Seen&) {
    auto whole = at::full({4, 4}, group.rank() + 1.0);
    auto work = group.all_reduce_async(whole.t().narrow(0, 1, 2));
    work.wait();
    EXPECT_EQ(whole[0][0].item<double>(), group.rank() + 1);
    EXPECT_EQ(whole[0][1].item<double>(), 3);
    auto gathering = group.all_gather_async(at::full({3}, group.rank()));
    EXPECT_EQ(gathering.result()[1][0].item<double>(), 1);
    auto empty = at::empty({0});
    group.broadcast(empty);
  });
}

// Gloo's own types would fail in the stand-in, as they do in NCCL.
TEST(NcclTransport, WhatIsNotReducedIsMovedAsBytes) {
  run(2, [](ProcessGroup& group, Seen& seen) {
    for (const auto dtype : {at::kShort, at::kBFloat16, at::kComplexDouble, at::kBool}) {
      auto tensor = at::full({5}, group.rank(), dtype);
      group.broadcast(tensor, 1);
      EXPECT_EQ(seen.tensors[0].scalar_type(), at::kByte);
      EXPECT_TRUE(at::equal(tensor, at::full({5}, 1, dtype))) << c10::toString(dtype);
    }
  });
}

TEST(NcclTransport, ComplexNumbersAreAddedAsPairs) {
  run(2, [](ProcessGroup& group, Seen& seen) {
    auto tensor = at::full({3}, c10::complex<double>(1, group.rank()), at::kComplexDouble);
    group.all_reduce(tensor);
    EXPECT_EQ(seen.tensors[0].scalar_type(), at::kDouble);
    EXPECT_EQ(tensor[2].item<c10::complex<double>>(), c10::complex<double>(2, 1));
    EXPECT_THROW(group.all_reduce(tensor, ReduceOp::Product), UsageError);
  });
}

// LibTorch's own backend says that there are no devices, when it is created.
TEST(NcclTransport, WithoutADeviceTheErrorSaysSo) {
  if (!nccl::has_nccl()) GTEST_SKIP() << "this LibTorch was built without NCCL";
  if (launch::available_gpus() > 0) GTEST_SKIP() << "there are GPUs";
  run_ranks(2, "shm", [](ProcessGroup& parent) {
    NcclLikeGroup real(parent);
    auto& impl = *comm::generation_of(*real.group);
    const c10::Device device(c10::kCPU);
    impl.transport = std::make_shared<nccl::Transport>(
        impl, device,
        nccl::make_engine(impl.store->under("nccl"), impl.rank, impl.world_size, impl.timeout, device));
    const auto message = message_of<Error>([&] { real.group->all_reduce(at::ones({4})); });
    EXPECT_THAT(message, HasSubstr("all_reduce of 4 Float, Sum failed"));
    EXPECT_THAT(message, HasSubstr("no GPUs found"));
  });
}

// A device that executes the call later registers it with the storage.
TEST(NcclTransport, TheBackendGetsTheCallersStorage) {
  run(2, [](ProcessGroup& group, Seen& seen) {
    const auto memory = at::ones({100});
    group.all_reduce(memory.narrow(0, 10, 20));
    EXPECT_TRUE(seen.tensors[0].is_alias_of(memory));
    EXPECT_EQ(seen.tensors[0].storage_offset(), 10);
    group.all_to_all_single(at::empty({20}), memory.narrow(0, 40, 20));
    EXPECT_EQ(seen.calls.back(), "alltoall_base");
    EXPECT_TRUE(seen.tensors[0].is_alias_of(memory));
    EXPECT_EQ(seen.tensors[0].nbytes(), 80);
  });
}

TEST(NcclTransport, RefusesWhatNcclCannotDoAndStaysUsable) {
  run(2, [](ProcessGroup& group, Seen& seen) {
    auto whole = at::ones({4}, at::kInt);
    auto narrow = at::ones({4}, at::kShort);
    const auto message = message_of<UsageError>([&] { group.all_reduce(whole, ReduceOp::Bxor); });
    EXPECT_THAT(message, HasSubstr("all_reduce of 4 Int, Bxor cannot be done"));
    EXPECT_THAT(message, HasSubstr("NCCL has no bitwise operations\nhint: "));
    EXPECT_THAT(message_of<UsageError>([&] { group.all_reduce(narrow); }), HasSubstr("no Sum of Short"));
    EXPECT_THAT(message_of<UsageError>([&] { group.send(whole, 1 - group.rank(), 7); }), HasSubstr("tag 0"));
    EXPECT_EQ(seen.connected, 0);
    group.all_reduce(whole);
    EXPECT_EQ(whole[0].item<int>(), 2);
  });
}

TEST(NcclTransport, ConnectsInTheFirstCallAndClosesAtTheEnd) {
  run_ranks(2, "shm", [](ProcessGroup& parent) {
    SeenPtr used, unused;
    {
      NcclLikeGroup like(parent), idle(parent);
      used = like.seen;
      unused = idle.seen;
      EXPECT_EQ(used->connected, 0);
      for (int round = 0; round < 3; ++round) like.group->all_reduce(at::ones({4}));
    }
    EXPECT_EQ(used->connected, 1);
    EXPECT_EQ(used->closed, 1);
    EXPECT_EQ(used->aborted, 0);
    EXPECT_EQ(unused->connected, 0);
    EXPECT_EQ(unused->closed, 0);
  });
}

TEST(NcclTransport, AWaitDoesNotWaitForTheDevice) {
  run(2, [](ProcessGroup& group, Seen& seen) {
    seen.device_is_done = false;
    auto work = group.all_reduce_async(at::ones({4}));
    EXPECT_FALSE(work.is_done());
    work.wait();
    EXPECT_EQ(seen.marked, 1);
    EXPECT_TRUE(work.is_done());
    seen.device_is_done = true;
  });
}

// The end of a group must not end calls that the device has not executed yet.
TEST(NcclTransport, TheEndOfAGroupWaitsForTheDevice) {
  run_ranks(2, "shm", [](ProcessGroup& parent) {
    auto like = std::make_unique<NcclLikeGroup>(parent);
    const auto seen = like->seen;
    seen->device_is_done = false;
    like->group->all_reduce(at::ones({4}));
    std::thread device([seen] {
      std::this_thread::sleep_for(100ms);
      EXPECT_EQ(seen->closed, 0);
      seen->device_is_done = true;
    });
    like.reset();
    EXPECT_TRUE(seen->device_is_done);
    EXPECT_EQ(seen->closed, 1);
    device.join();
  });
}

// With synchronised batch norms, and with a hook.
TEST(NcclTransport, TrainingEqualsThatOverSharedMemory) {
  run_ranks(2, "shm", [](ProcessGroup& parent) {
    const NcclLikeGroup like(parent);
    const auto train = [&](const std::shared_ptr<ProcessGroup>& group, bool compress) {
      torch::manual_seed(1);
      auto net = std::make_shared<NormNet>();
      DistributedDataParallel ddp(net, group, {.first_bucket_mb = 1e-4});
      convert_sync_batchnorm(net, group);
      if (compress) ddp.register_comm_hook(hooks::power_sgd({.start_step = 2}));
      torch::optim::SGD optimizer(ddp.parameters(), 0.05);
      for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        const auto batch = torch::sin(torch::arange(48, at::kFloat).view({6, 8}) + step + group->rank());
        ddp(batch).pow(2).mean().backward();
        optimizer.step();
      }
      ddp.verify_replicas();
      return ddp.parameters();
    };
    for (const bool compress : {false, true}) {
      const auto expected = train(default_group(), compress), learnt = train(like.group, compress);
      for (size_t i = 0; i < learnt.size(); ++i) {
        EXPECT_TRUE(at::allclose(learnt[i], expected[i], 1e-4, 1e-5)) << "parameter " << i;
      }
    }
    EXPECT_THAT(like.seen->calls, ::testing::Contains("allreduce"));
  });
}

TEST(NcclTransport, SparseGradients) {
  run(2, [](ProcessGroup& group, Seen&) {
    torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 3).sparse(true));
    const std::shared_ptr<ProcessGroup> handle(std::shared_ptr<void>(), &group);
    DistributedDataParallel ddp(embedding, handle);
    ddp(at::tensor({group.rank(), 5}, at::kLong)).sum().backward();
    const auto gradient = embedding->weight.grad().to_dense();
    EXPECT_EQ(gradient[5][0].item<float>(), 1);
    EXPECT_EQ(gradient[group.rank()][0].item<float>(), 0.5);
    EXPECT_EQ(gradient[1 - group.rank()][0].item<float>(), 0.5);
  });
}

void wait_for_abort(const Seen& seen) {
  const auto deadline = base::Deadline::in(30s);
  while (seen.aborted == 0 && !deadline.expired()) std::this_thread::sleep_for(5ms);
  EXPECT_EQ(seen.aborted, 1);
}

// Nothing on the host waits: the rank would read from its device, which waits for the other.
TEST(NcclTransport, ARankThatEndsWhileTheDeviceWaitsForItEndsTheGroup) {
  const auto outcomes = start_ranks(3, [](int rank) {
    const auto parent = init_process_group({.timeout = 60s});
    const NcclLikeGroup like(*parent);
    auto tensor = at::ones({4});
    like.seen->device_is_done = false;
    like.group->all_reduce(tensor);
    if (rank == 2) ::raise(SIGKILL);
    wait_for_abort(*like.seen);
    const auto message = message_of<PeerLostError>([&] { like.group->all_reduce(tensor); });
    EXPECT_THAT(message, HasSubstr("rank 2"));
    EXPECT_THAT(message, HasSubstr("communication between CUDA devices"));
    EXPECT_EQ(like.seen->closed, 0);
  });
  EXPECT_EQ(outcomes[0].exit_status, 0) << outcomes[0].describe();
  EXPECT_EQ(outcomes[1].exit_status, 0) << outcomes[1].describe();
}

TEST(NcclTransport, AnErrorOnTheHostAbortsTheDevice) {
  run_ranks(2, "shm", [](ProcessGroup& parent) {
    const NcclLikeGroup like(parent);
    like.group->all_reduce(at::ones({4}));
    like.group->poison(Error("this rank cannot continue"));
    const auto message = message_of<Error>([&] { like.group->all_reduce(at::ones({4})); });
    EXPECT_THAT(message, HasSubstr("this rank cannot continue"));
    wait_for_abort(*like.seen);
  });
}

}  // namespace
}  // namespace lockstep::testing
