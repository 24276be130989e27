// Other kinds of modules, and modules that change while they are wrapped.
#include <gmock/gmock.h>

#include <lockstep/jit.h>

#include "ddp/training.h"
#include "support/message_of.h"
#include "support/scratch_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Changes : public DdpTest {};

void step(auto& ddp, ProcessGroup& group, int number) {
  drop_gradients(ddp.parameters());
  const auto mine = share_of(global_batch(24, number), group).to(ddp.parameters()[0].scalar_type());
  loss_of(ddp(mine), mine).backward();
  expect_same_on_all_ranks(group, gradients_of(ddp.parameters()));
}

TEST_P(Changes, TakesModulesThatNobodyShares) {
  run([](ProcessGroup& group) {
    Net on_stack;
    convert_sync_batchnorm(on_stack);
    torch::nn::BatchNorm1dImpl lone(4);
    EXPECT_THROW(convert_sync_batchnorm(lone), UsageError);
    DistributedDataParallel ddp(on_stack, default_group());
    static_assert(std::is_same_v<decltype(ddp), DistributedDataParallel<Net>>);
    EXPECT_EQ(ddp.operator->(), &on_stack);
    DistributedDataParallel with_options(on_stack.third, default_group(), {.bucket_cap_mb = 1});
    torch::nn::LinearImpl plain(8, 4);
    DistributedDataParallel of_plain(plain);
    torch::nn::EmbeddingImpl embedding(torch::nn::EmbeddingOptions(8, 4).sparse(true));
    DistributedDataParallel of_embedding(embedding);
    of_embedding(torch::arange(8)).sum().backward();
    EXPECT_EQ(of_embedding.stats().bytes, 0) << "a sparse gradient takes no bucket memory";
    DistributedDataParallel of_unique(std::make_unique<Net>(), default_group());
    DistributedDataParallel moved(std::move(of_unique));
    static_assert(std::is_same_v<decltype(moved), DistributedDataParallel<Net>>);
    for (int number = 0; number < 2; ++number) {
      step(ddp, group, number);
      step(of_plain, group, number);
      step(moved, group, number);
    }
    EXPECT_TRUE(same_bits(on_stack.first->weight.grad(), ddp.parameters()[0].grad()));
  });
}

TEST_P(Changes, TakesHandlesOfTorchScript) {
  run([](ProcessGroup& group) {
    torch::jit::Module module("Line");
    module.register_parameter("slope", torch::full({1}, 1.0F + group.rank()), false);
    module.register_attribute("training", c10::BoolType::get(), true);
    module.define("def forward(self, x):\n    return self.slope * x\n");
    for (auto parameter : module.parameters()) parameter.requires_grad_(true);
    DistributedDataParallel ddp(module, default_group());
    static_assert(std::is_same_v<decltype(ddp), DistributedDataParallel<torch::jit::Module>>);
    DistributedDataParallel of_temporary(torch::jit::Module(module), default_group());
    const auto x = torch::full({2}, group.rank() + 1.0F);
    ddp(std::vector<c10::IValue>{x}).toTensor().sum().backward();
    expect_same_on_all_ranks(group, {module.attr("slope").toTensor().grad()});
  });
}

TEST_P(Changes, Converts) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net());
    step(ddp, group, 0);
    drop_gradients(ddp.parameters());
    ddp.to(at::kDouble);
    step(ddp, group, 1);
    ddp.to(torch::kCPU);
    ddp.to(torch::kCPU, at::kFloat);
    EXPECT_EQ(ddp.parameters()[0].scalar_type(), at::kFloat);
    step(ddp, group, 2);
    Join join(ddp);
    EXPECT_THAT(message_of<UsageError>([&] { ddp.to(at::kDouble); }),
                HasSubstr("ddp.to() was called under Join"));
    ddp.module()->to(at::kFloat);
  });
}

TEST(ChangesAlone, SavesAndLoadsTheModule) {
  run_ranks(1, "auto", [](ProcessGroup&) {
    const ScratchFolder folder;
    DistributedDataParallel ddp(make_net(1));
    torch::save(ddp, folder / "net.pt");
    auto bare = make_net(2);
    torch::load(bare, folder / "net.pt");
    EXPECT_TRUE(same_bits(bare->first->weight, ddp->first->weight));
    DistributedDataParallel other(make_net(3));
    torch::save(bare, folder / "bare.pt");
    torch::load(other, folder / "bare.pt");
    EXPECT_TRUE(same_bits(other->third->bias, ddp->third->bias));
  });
}

TEST_P(Changes, TrainsOnAfterALoad) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net(1));
    DistributedDataParallel fresh(make_net(2));
    for (int i = 0; i < 2; ++i) step(ddp, group, i);
    std::stringstream saved;
    torch::save(fresh, saved);
    torch::load(ddp, saved);
    for (int i = 0; i < 2; ++i) {
      step(ddp, group, i);
      step(fresh, group, i);
      expect_same_on_all_ranks(group, gradients_of(ddp.parameters()));
      expect_close(gradients_of(ddp.parameters()), gradients_of(fresh.parameters()));
    }
  });
}

TEST_P(Changes, NamesAndZeroesItsParameters) {
  run([](ProcessGroup& group) {
    auto net = make_net();
    net->register_module("again", net->third);  // the same tensors under another name
    DistributedDataParallel ddp(net);
    EXPECT_EQ(ddp.named_parameters().size(), ddp.parameters().size());
    EXPECT_TRUE(ddp.named_parameters().contains("first.weight"));
    step(ddp, group, 0);
    ddp.zero_grad(false);
    EXPECT_EQ(net->first->weight.grad().abs().sum().item<float>(), 0);
    ddp.zero_grad();
    EXPECT_FALSE(net->first->weight.grad().defined());
    step(ddp, group, 1);
  });
}

// Points that are added and removed during training, as in splatting.
struct Points : torch::nn::Module {
  Points() { resize(4); }
  void resize(int64_t count) {
    const at::NoGradGuard no_grad;
    auto grown = torch::zeros({count, 8});
    const auto kept = points.defined() ? std::min(count, points.size(0)) : 0;
    if (kept > 0) grown.narrow(0, 0, kept).copy_(points.narrow(0, 0, kept));
    // Random values, drawn by each rank.
    if (count > kept) grown.narrow(0, kept, count - kept).normal_();
    if (points.defined()) unregister();
    points = register_parameter("points", grown);
  }
  void unregister() { parameters_.erase("points"); }
  at::Tensor forward(const at::Tensor& x) { return torch::mm(x, points.t()).mean(1); }
  at::Tensor points;
};

TEST_P(Changes, RefreshTakesParametersThatAppearedAndVanished) {
  run([](ProcessGroup& group) {
    torch::manual_seed(group.rank());
    auto model = std::make_shared<Points>();
    DistributedDataParallel ddp(model);
    // A hook that remembers buckets by their names.
    ddp.register_comm_hook(hooks::power_sgd({.start_step = 0, .min_compression = 0.1}));
    auto optimizer = std::make_unique<torch::optim::Adam>(ddp.parameters(), 0.1);
    for (int number = 0; number < 6; ++number) {
      if (number == 2) model->resize(9);
      if (number == 4) model->resize(3);
      if (number % 2 == 0 && number > 0) {
        ddp.refresh();
        optimizer = std::make_unique<torch::optim::Adam>(ddp.parameters(), 0.1);
      }
      optimizer->zero_grad();
      const auto mine = share_of(global_batch(24, number), group);
      (ddp(mine) - 1).pow(2).mean().backward();
      optimizer->step();
      ASSERT_TRUE(model->points.grad().defined());
      expect_same_on_all_ranks(group, {model->points, model->points.grad()});
    }
    EXPECT_EQ(ddp.parameters()[0].size(0), 3);
    // The ranks must agree on what they have.
    model->resize(3 + group.rank());
    EXPECT_THAT(message_of<MismatchError>([&] { ddp.refresh(); }),
                HasSubstr("parameter 'points': Float [3, 8]"));
  });
}

TEST_P(Changes, AReplacedPartIsNamedAsTheCause) {
  run([](ProcessGroup& group) {
    for (const int when : {0, 1}) {
      std::vector<int> everybody(group.world_size());
      std::iota(everybody.begin(), everybody.end(), 0);
      auto net = make_net();
      DistributedDataParallel ddp(net, group.new_group(everybody));
      for (int number = 0; number < when; ++number) step(ddp, group, number);
      net->third = net->replace_module("third", torch::nn::Linear(16, 4));
      const auto mine = share_of(global_batch(24, 0), group);
      auto loss = loss_of(ddp(mine), mine);
      const auto message = message_of<Error>([&] { loss.backward(); });
      EXPECT_THAT(message, AllOf(HasSubstr("'third.weight'"), HasSubstr("got no gradient"),
                                 HasSubstr("have been replaced since it was wrapped"),
                                 HasSubstr("hint: call ddp.refresh() after changing the module")));
    }
    auto net = make_net();
    DistributedDataParallel ddp(net);
    net->third = net->replace_module("third", torch::nn::Linear(16, 4));
    ddp.refresh();
    step(ddp, group, 0);
  });
}

LOCKSTEP_DDP_WORLDS(Changes, World("shm", 2), World("gloo", 2));

}  // namespace
}  // namespace lockstep::testing
