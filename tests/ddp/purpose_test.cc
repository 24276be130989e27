// Errors name the operation that the user called, regardless of the collective that failed.
#include <csignal>
#include <gmock/gmock.h>

#include <lockstep/metrics.h>
#include <lockstep/snapshot.h>

#include "ddp/training.h"
#include "support/scratch_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Purposes : public ::testing::TestWithParam<const char*> {
 protected:
  // Rank 1 is killed when it calls `dies`; the error of rank 0 must begin with the purpose.
  void expect(const std::string& purpose,
              const std::function<void(ProcessGroup& group, const std::function<void()>& dies)>& body) {
    const std::string backend = GetParam();
    const auto outcomes = start_ranks(
        2,
        [&](int rank) {
          const auto group = init_process_group({.backend = backend, .timeout = std::chrono::seconds(20)});
          body(*group, [rank] { Fault::kill_at(1, 0).reach(rank, 0); });
        },
        {.environment = environment_for(backend, 2)});
    EXPECT_EQ(outcomes[1].signal, SIGKILL);
    EXPECT_THAT(outcomes[0].output,
                AllOf(HasSubstr("PeerLostError: " + purpose), HasSubstr("rank 1 (pid"), HasSubstr("hint:")))
        << outcomes[0].describe();
  }
};

struct LoneNorm : torch::nn::Module {
  LoneNorm() : norm(register_module("norm", torch::nn::BatchNorm1d(8))) {}
  at::Tensor forward(const at::Tensor& x) { return norm->forward(x); }
  torch::nn::BatchNorm1d norm;
};

TEST_P(Purposes, OfTheWrapper) {
  expect("DistributedDataParallel construction: ", [](ProcessGroup&, const auto& dies) {
    dies();
    DistributedDataParallel ddp(make_net());
  });
  expect("DDP gradients, bucket 0 (third.", [](ProcessGroup& group, const auto& dies) {
    DistributedDataParallel ddp(make_net());
    const auto mine = share_of(global_batch(24, 0), group);
    loss_of(ddp(mine), mine).backward();
    auto loss = loss_of(ddp(mine), mine);
    dies();
    loss.backward();
  });
  expect("DDP buffers, before forward: ", [](ProcessGroup& group, const auto& dies) {
    DistributedDataParallel ddp(std::make_shared<LoneNorm>());
    dies();
    ddp(share_of(global_batch(24, 0), group));
  });
  expect("verify_replicas: ", [](ProcessGroup&, const auto& dies) {
    DistributedDataParallel ddp(make_net());
    dies();
    ddp.verify_replicas();
  });
  expect("SyncBatchNorm, ", [](ProcessGroup& group, const auto& dies) {
    auto module = std::make_shared<LoneNorm>();
    convert_sync_batchnorm(module);
    dies();
    module->forward(share_of(global_batch(24, 0), group));
  });
}

TEST_P(Purposes, OfWhatIsBesideIt) {
  const ScratchFolder folder;
  expect("Snapshots::save: ", [&](ProcessGroup&, const auto& dies) {
    auto net = make_net();
    Snapshots snapshots(folder / "saved", default_group());
    dies();
    snapshots.save(net);
  });
  expect("Snapshots::resume: ", [&](ProcessGroup&, const auto& dies) {
    auto net = make_net();
    Snapshots snapshots(folder / "resumed", default_group());
    dies();
    snapshots.resume(net);
  });
  expect("Average::all_reduce: ", [](ProcessGroup& group, const auto& dies) {
    Average loss;
    loss.add(1.0);
    dies();
    loss.all_reduce(group);
  });
  expect("gather_by_index: ", [](ProcessGroup& group, const auto& dies) {
    dies();
    gather_by_index(torch::ones({1, 2}), {static_cast<size_t>(group.rank())}, 2, group);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Purposes, ::testing::Values("shm", "gloo", "hybrid"),
                         [](const auto& backend) { return std::string(backend.param); });

}  // namespace
}  // namespace lockstep::testing
