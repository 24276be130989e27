// The construction of DistributedDataParallel: the ranks compare their models, then broadcast or verify the
// values. Also the broadcast of buffers before forward, and the comparison of replicas.
#include <gmock/gmock.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <lockstep/jit.h>

#include "ddp/training.h"
#include "support/message_of.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Construction : public DdpTest {};

TEST_P(Construction, TakesEveryKindOfModule) {
  run([](ProcessGroup& group) {
    torch::nn::Sequential sequential(torch::nn::Linear(8, 8), torch::nn::ReLU(), torch::nn::Linear(8, 4));
    DistributedDataParallel of_holder(sequential, default_group());
    DistributedDataParallel of_linear(torch::nn::Linear(8, 4));
    DistributedDataParallel of_pointer(make_net());
    DistributedDataParallel of_lstm(torch::nn::LSTM(8, 4), default_group());
    const auto mine = share_of(global_batch(24, 0), group);
    loss_of(of_holder(mine), mine).backward();
    loss_of(of_linear.forward(mine), mine).backward();
    loss_of(of_pointer(mine), mine).backward();
    const auto [output, state] = of_lstm(mine.unsqueeze(0));
    (output.sum() + std::get<0>(state).sum()).backward();
    expect_same_on_all_ranks(group, gradients_of(of_holder.parameters()));
    expect_same_on_all_ranks(group, gradients_of(of_linear.parameters()));
    expect_same_on_all_ranks(group, gradients_of(of_pointer.parameters()));
    expect_same_on_all_ranks(group, gradients_of(of_lstm.parameters()));
    of_pointer.eval();
    EXPECT_FALSE(of_pointer->is_training());
    of_pointer.train();
    EXPECT_TRUE(of_pointer.module()->is_training());
  });
}

TEST_P(Construction, TakesTorchScript) {
  run([](ProcessGroup& group) {
    auto module = std::make_shared<torch::jit::Module>("Line");
    module->register_parameter("slope", torch::full({1}, 1.0F + group.rank()), false);
    module->register_attribute("training", c10::BoolType::get(), true);
    module->define("def forward(self, x):\n    return (self.slope * x, x)\n");
    for (auto parameter : module->parameters()) parameter.requires_grad_(true);
    DistributedDataParallel ddp(module, default_group());
    for (int step = 0; step < 3; ++step) {
      drop_gradients(ddp.parameters());
      const auto x = torch::full({2}, group.rank() + 1.0F);
      const auto output = ddp(std::vector<c10::IValue>{x});
      output.toTuple()->elements()[0].toTensor().sum().backward();
      EXPECT_TRUE(at::allclose(ddp.parameters()[0].grad(), torch::full({1}, group.world_size() + 1.0F)));
    }
    expect_same_on_all_ranks(group, ddp.parameters());
  });
}

TEST_P(Construction, TakesAnyBackendOfC10d) {
  run([](ProcessGroup& group) {
    // A wrapped c10d backend: lockstep knows only its c10d interface.
    const auto path = group.all_gather(torch::full({1}, static_cast<int64_t>(::getpid())))[0].item<int64_t>();
    const auto file = "/tmp/lockstep-test-" + std::to_string(path);
    {
      auto store = c10::make_intrusive<c10d::FileStore>(file, group.world_size());
      auto backend =
          group.new_group(group.world_size() == 2 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2})
              ->c10d();
      auto wrapped = make_process_group(backend, c10::make_intrusive<c10d::PrefixStore>("w", store));
      DistributedDataParallel ddp(make_net(), wrapped);
      const auto mine = share_of(global_batch(24, 0), group);
      loss_of(ddp(mine), mine).backward();
      expect_same_on_all_ranks(group, gradients_of(ddp.parameters()));
      // Another group on the same backend: its exchanges continue where the first group's ended.
      auto again = make_process_group(backend, c10::make_intrusive<c10d::PrefixStore>("again", store));
      DistributedDataParallel second(make_net(), again);
      second.verify_replicas();
      ddp.verify_replicas();
      group.barrier();
    }
    ::unlink(file.c_str());
  });
}

TEST_P(Construction, BroadcastsVerifiesOrLeavesAlone) {
  run([](ProcessGroup& group) {
    const auto different = [&] { return make_net(10 + group.rank()); };
    DistributedDataParallel broadcast(different());
    EXPECT_TRUE(same_bits(broadcast->first->weight, make_net(10)->first->weight));
    expect_same_on_all_ranks(group, broadcast.parameters());
    broadcast.verify_replicas();

    DistributedDataParallel verified(make_net(), default_group(), {.init_sync = InitSync::Verify});
    const auto message = message_of<MismatchError>(
        [&] { DistributedDataParallel(different(), default_group(), {.init_sync = InitSync::Verify}); });
    EXPECT_THAT(message, AllOf(HasSubstr("'first.weight'"), HasSubstr("rank 1")));

    DistributedDataParallel none(different(), default_group(), {.init_sync = InitSync::None});
    EXPECT_TRUE(same_bits(none->first->weight, make_net(10 + group.rank())->first->weight));
    EXPECT_THROW(none.verify_replicas(), MismatchError);
  });
}

TEST_P(Construction, OfDifferentModelsSaysWhatDiffers) {
  run([](ProcessGroup& group) {
    const bool odd = group.rank() == 1;
    const auto shape =
        message_of<MismatchError>([&] { DistributedDataParallel ddp(std::make_shared<Net>(odd ? 20 : 16)); });
    EXPECT_THAT(shape, AllOf(HasSubstr("rank 0 has parameter 'first.weight': Float [16, 8]"),
                             HasSubstr("rank 1 has parameter 'first.weight': Float [20, 8]")));
    const auto dtype = message_of<MismatchError>([&] {
      auto net = make_net();
      if (odd) net->third->to(at::kDouble);
      DistributedDataParallel ddp(net);
    });
    EXPECT_THAT(dtype, AllOf(HasSubstr("'third.weight': Float"), HasSubstr("'third.weight': Double")));
    const auto frozen = message_of<MismatchError>([&] {
      auto net = make_net();
      if (odd) net->second->bias.requires_grad_(false);
      DistributedDataParallel ddp(net);
    });
    EXPECT_THAT(frozen, HasSubstr("'second.bias'"));
    const auto count = message_of<MismatchError>([&] {
      torch::nn::Sequential layers(torch::nn::Linear(2, 2));
      if (odd) layers->push_back(torch::nn::Linear(2, 2));
      DistributedDataParallel ddp(layers);
    });
    EXPECT_THAT(count, HasSubstr("rank 1 has parameter '1.weight'"));
    const auto options = message_of<MismatchError>(
        [&] { DistributedDataParallel ddp(make_net(), default_group(), {.find_unused_parameters = odd}); });
    EXPECT_THAT(options, HasSubstr("find_unused_parameters true"));
    // The group still works.
    DistributedDataParallel(make_net()).verify_replicas();
  });
}

TEST_P(Construction, RefusesWhatCannotBe) {
  run([](ProcessGroup&) {
    const std::shared_ptr<Net> none;
    EXPECT_THROW(DistributedDataParallel<Net>{none}, UsageError);
    EXPECT_THROW(DistributedDataParallel(make_net(), nullptr), UsageError);
    EXPECT_THROW(DistributedDataParallel(make_net(), default_group(), {.bucket_cap_mb = 0}), UsageError);
    EXPECT_THROW(DistributedDataParallel(make_net(), default_group(), {.ignore = {"fist.weight"}}),
                 UsageError);
    auto frozen = make_net();
    for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
    EXPECT_THROW(DistributedDataParallel{frozen}, UsageError);
    DistributedDataParallel ddp(make_net());
    ddp.register_comm_hook(hooks::fp16_compress());
    EXPECT_THROW(ddp.register_comm_hook(hooks::fp16_compress()), UsageError);
  });
}

// Buffers are rank 0's at the start of each synchronised training forward.
struct Normed : torch::nn::Module {
  Normed()
      : layer(register_module("layer", torch::nn::Linear(8, 4))),
        norm(register_module("norm", torch::nn::BatchNorm1d(4))) {}
  at::Tensor forward(const at::Tensor& x) { return norm->forward(layer->forward(x)); }
  torch::nn::Linear layer;
  torch::nn::BatchNorm1d norm;
};

TEST_P(Construction, BuffersAreRankZerosBeforeASynchronisedTrainingForward) {
  run([](ProcessGroup& group) {
    const auto mean_of_rank_0 = [&](const at::Tensor& mine) { return group.all_gather(mine)[0]; };
    DistributedDataParallel ddp(std::make_shared<Normed>());
    const auto mine = share_of(global_batch(24, 0), group);
    ddp(mine).pow(2).mean().backward();
    // Each rank has seen different data.
    const auto first = ddp->norm->running_mean.clone();
    EXPECT_EQ(same_bits(mean_of_rank_0(first), first), group.rank() == 0);
    ddp.verify_replicas();  // does not compare buffers
    // No broadcast without synchronisation, in evaluation, or without gradients.
    {
      const auto guard = ddp.no_sync();
      ddp(mine);
    }
    {
      const torch::NoGradGuard no_grad;
      ddp(mine);
    }
    ddp.eval();
    ddp(mine);
    ddp.train();
    auto alone = std::make_shared<Normed>();
    const auto before = ddp->norm->running_mean.clone();
    EXPECT_EQ(same_bits(mean_of_rank_0(before), before), group.rank() == 0);
    // A synchronised forward starts with rank 0's buffers.
    const auto start = mean_of_rank_0(before);
    ddp(mine);
    {
      const torch::NoGradGuard no_grad;
      const auto now = ddp->layer->forward(mine).mean(0);
      EXPECT_TRUE(at::allclose(ddp->norm->running_mean, start * 0.9 + now * 0.1, 1e-5, 1e-6));
    }
    // Reassigned buffers are found.
    ddp->norm->running_mean = torch::full({4}, static_cast<float>(group.rank()));
    ddp->norm->named_buffers(false)["running_mean"] = ddp->norm->running_mean;
  });
}

TEST_P(Construction, ContinuousComparisonFindsDrift) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net(), default_group(), {.verify_every = 3});
    torch::optim::SGD optimizer(ddp.parameters(), 0.05);
    for (int step = 1; step <= 6; ++step) {
      const auto mine = share_of(global_batch(24, step), group);
      if (step < 6) {
        optimizer.zero_grad();
        loss_of(ddp(mine), mine).backward();
        optimizer.step();
      } else {
        const auto message = message_of<MismatchError>([&] { ddp(mine); });
        EXPECT_THAT(message, AllOf(HasSubstr("'second.bias'"), HasSubstr("rank 1")));
      }
      const torch::NoGradGuard no_grad;
      if (step == 4 && group.rank() == 1) ddp->second->bias.add_(1e-7);
    }
  });
}

LOCKSTEP_DDP_WORLDS(Construction, World("shm", 2), World("gloo", 3), World("hybrid", 3));

TEST(ConstructionAlone, InAWorldOfOneCostsNothing) {
  run_ranks(1, "auto", [](ProcessGroup&) {
    DistributedDataParallel ddp(make_net());
    auto alone = make_net();
    const auto batch = global_batch(8, 0);
    auto loss = loss_of(ddp(batch), batch);
    EXPECT_EQ(loss_of(alone->forward(batch), batch).item<float>(), loss.item<float>());
    loss.backward();
    loss_of(alone->forward(batch), batch).backward();
    for (size_t i = 0; i < alone->parameters().size(); ++i) {
      EXPECT_TRUE(same_bits(ddp.parameters()[i].grad(), alone->parameters()[i].grad()));
    }
    EXPECT_TRUE(ddp.stats().buckets.empty());
    ddp.verify_replicas();
    Join join(ddp);
  });
}

}  // namespace
}  // namespace lockstep::testing
