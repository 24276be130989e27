// Passes that are not synchronised, and steps with several forwards, backward passes or modules.
#include "ddp/training.h"

namespace lockstep::testing {
namespace {

class NoSyncTest : public DdpTest {};

at::Tensor loss_on(DistributedDataParallel<Net>& ddp, ProcessGroup& group, int step) {
  const auto mine = share_of(global_batch(24, step), group);
  return loss_of(ddp(mine), mine);
}

TEST_P(NoSyncTest, GradientsStayLocal) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net(), default_group());
    auto alone = make_net();
    {
      const auto guard = ddp.no_sync();
      loss_on(ddp, group, 0).backward();
    }
    const auto mine = share_of(global_batch(24, 0), group);
    loss_of(alone->forward(mine), mine).backward();
    for (size_t i = 0; i < ddp.parameters().size(); ++i) {
      EXPECT_TRUE(same_bits(ddp.parameters()[i].grad(), alone->parameters()[i].grad()));
    }
  });
}

TEST_P(NoSyncTest, GuardsNestAndRestore) {
  run([](ProcessGroup&) {
    DistributedDataParallel ddp(make_net(), default_group());
    EXPECT_TRUE(ddp.gradient_sync());
    {
      const auto outer = ddp.no_sync();
      {
        const auto inner = ddp.no_sync();
        EXPECT_FALSE(ddp.gradient_sync());
      }
      EXPECT_FALSE(ddp.gradient_sync());
      ddp.set_gradient_sync(true);
      {
        auto moved = ddp.no_sync();
        const auto kept = std::move(moved);
        EXPECT_FALSE(ddp.gradient_sync());
      }
      EXPECT_TRUE(ddp.gradient_sync());
    }
    EXPECT_TRUE(ddp.gradient_sync());
    ddp.set_gradient_sync(false);
    { const auto guard = ddp.no_sync(); }
    EXPECT_FALSE(ddp.gradient_sync());
  });
}

// The setting at forward decides whether the backward pass is synchronised.
TEST_P(NoSyncTest, BackwardFollowsWhatItsForwardSaw) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net(), default_group());
    const auto steps = [&] { return ddp.stats().steps; };
    at::Tensor loss;
    {
      const auto guard = ddp.no_sync();
      loss = loss_on(ddp, group, 0);
    }
    loss.backward();  // after the guard, but its forward was under the guard
    EXPECT_EQ(steps(), 0);
    loss = loss_on(ddp, group, 1);
    {
      const auto guard = ddp.no_sync();
      loss.backward();
    }
    EXPECT_EQ(steps(), 1);
    expect_same_on_all_ranks(group, gradients_of(ddp.parameters()));

    // Two forwards, with their backward passes in both orders.
    for (const bool first_one_first : {true, false}) {
      drop_gradients(ddp.parameters());
      at::Tensor local;
      {
        const auto guard = ddp.no_sync();
        local = loss_on(ddp, group, 2);
      }
      auto synced = loss_on(ddp, group, 3);
      const auto before = steps();
      (first_one_first ? local : synced).backward();
      EXPECT_EQ(steps(), before + (first_one_first ? 0 : 1));
      (first_one_first ? synced : local).backward();
      EXPECT_EQ(steps(), before + 1);
    }
  });
}

// PyTorch 1.13.1 ignores these, and its replicas diverge.
TEST_P(NoSyncTest, ParametersUsedOnlyInsideItCountAsUsed) {
  struct TwoHeads : torch::nn::Module {
    TwoHeads()
        : body(register_module("body", torch::nn::Linear(8, 8))),
          left(register_module("left", torch::nn::Linear(8, 4))),
          right(register_module("right", torch::nn::Linear(8, 4))) {}
    at::Tensor forward(const at::Tensor& x, bool use_left) {
      const auto hidden = body->forward(x);
      return use_left ? left->forward(hidden) : right->forward(hidden);
    }
    torch::nn::Linear body, left, right;
  };
  run([](ProcessGroup& group) {
    for (const bool find_unused : {true, false}) {
      torch::manual_seed(3);
      auto alone = std::make_shared<TwoHeads>();
      torch::manual_seed(3);
      DistributedDataParallel ddp(std::make_shared<TwoHeads>(), default_group(),
                                  {.find_unused_parameters = find_unused});
      torch::optim::SGD optimizer(ddp.parameters(), 0.1), reference(alone->parameters(), 0.1);
      for (int step = 0; step < 3; ++step) {
        drop_gradients(ddp.parameters());
        drop_gradients(alone->parameters());
        const auto batch = global_batch(24, step);
        const auto mine = share_of(batch, group);
        loss_of(alone->forward(batch, true), batch).backward();
        loss_of(alone->forward(batch, false), batch).backward();
        {
          const auto guard = ddp.no_sync();
          loss_of(ddp(mine, true), mine).backward();
        }
        loss_of(ddp(mine, false), mine).backward();
        expect_close(gradients_of(ddp.parameters()), gradients_of(alone->parameters()));
        optimizer.step();
        reference.step();
        expect_same_on_all_ranks(group, ddp.parameters());
      }
    }
  });
}

TEST_P(NoSyncTest, SeveralForwardsBeforeOneBackward) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net(), default_group());
    auto alone = make_net();
    for (int step = 0; step < 3; ++step) {
      drop_gradients(ddp.parameters());
      drop_gradients(alone->parameters());
      (loss_on(ddp, group, step) + loss_on(ddp, group, step + 10)).backward();
      const auto a = global_batch(24, step), b = global_batch(24, step + 10);
      (loss_of(alone->forward(a), a) + loss_of(alone->forward(b), b)).backward();
      expect_close(gradients_of(ddp.parameters()), gradients_of(alone->parameters()));
    }
  });
}

TEST_P(NoSyncTest, SeveralBackwardsAccumulate) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net(), default_group());
    auto alone = make_net();
    for (int step = 0; step < 3; ++step) {
      auto first = loss_on(ddp, group, step), second = loss_on(ddp, group, step + 10);
      first.backward();
      second.backward();
      const auto a = global_batch(24, step), b = global_batch(24, step + 10);
      loss_of(alone->forward(a), a).backward();
      loss_of(alone->forward(b), b).backward();
      // Nothing is zeroed: gradients accumulate from step to step on both sides.
      expect_close(gradients_of(ddp.parameters()), gradients_of(alone->parameters()));
    }
  });
}

TEST_P(NoSyncTest, TheSameGraphTwice) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net(), default_group());
    auto alone = make_net();
    auto loss = loss_on(ddp, group, 0);
    loss.backward({}, true);
    loss.backward();
    const auto batch = global_batch(24, 0);
    auto reference = loss_of(alone->forward(batch), batch);
    reference.backward({}, true);
    reference.backward();
    expect_close(gradients_of(ddp.parameters()), gradients_of(alone->parameters()));
  });
}

// A GAN: two modules alternate. The generator's step goes through the discriminator, which is frozen then.
TEST_P(NoSyncTest, TwoModulesInTurn) {
  struct Generator : torch::nn::Module {
    Generator() : layer(register_module("layer", torch::nn::Linear(8, 8))) {}
    at::Tensor forward(const at::Tensor& x) { return torch::tanh(layer->forward(x)); }
    torch::nn::Linear layer;
  };
  run([](ProcessGroup& group) {
    for (const bool freeze : {true, false}) {
      const auto train = [&](auto& generator, auto& discriminator, const Tensors& g, const Tensors& d,
                             const std::function<at::Tensor(int)>& batch) {
        torch::optim::SGD g_optimizer(g, 0.1), d_optimizer(d, 0.1);
        for (int step = 0; step < 4; ++step) {
          const auto noise = batch(step);
          d_optimizer.zero_grad();
          loss_of(discriminator.forward(generator.forward(noise).detach()), noise).backward();
          d_optimizer.step();
          g_optimizer.zero_grad();
          for (auto parameter : d) parameter.requires_grad_(!freeze);
          (-loss_of(discriminator.forward(generator.forward(noise)), noise)).backward();
          for (auto parameter : d) parameter.requires_grad_(true);
          g_optimizer.step();
        }
      };
      torch::manual_seed(5);
      auto g = std::make_shared<Generator>();
      auto d = std::make_shared<Net>();
      torch::manual_seed(5);
      DistributedDataParallel g_ddp(std::make_shared<Generator>(), default_group());
      DistributedDataParallel d_ddp(std::make_shared<Net>(), default_group());
      train(*g, *d, g->parameters(), d->parameters(), [](int step) { return global_batch(24, step); });
      train(g_ddp, d_ddp, g_ddp.parameters(), d_ddp.parameters(),
            [&](int step) { return share_of(global_batch(24, step), group); });
      expect_close(g_ddp.parameters(), g->parameters(), 1e-4);
      expect_close(d_ddp.parameters(), d->parameters(), 1e-4);
      expect_same_on_all_ranks(group, g_ddp.parameters());
      expect_same_on_all_ranks(group, d_ddp.parameters());
    }
  });
}

// torch::autograd::grad returns gradients and accumulates none, so other ranks need not take part.
TEST_P(NoSyncTest, AutogradGradIsNoPass) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net());
    for (int step = 0; step < 3; ++step) {
      auto mine = share_of(global_batch(24, step), group).clone().requires_grad_(true);
      const auto output = ddp(mine);
      // On one rank only: a gradient penalty, and gradients of parameters.
      if (group.rank() == 0) {
        const auto slope = torch::autograd::grad({output.sum()}, {mine}, {}, true)[0];
        EXPECT_TRUE(slope.defined());
        torch::autograd::grad({output.sum()}, {ddp->first->weight}, {}, true);
      }
      EXPECT_EQ(ddp.stats().steps, step);
      loss_of(output, mine.detach()).backward();
      EXPECT_EQ(ddp.stats().steps, step + 1);
      expect_same_on_all_ranks(group, gradients_of(ddp.parameters()));
    }
  });
}

TEST_P(NoSyncTest, ForwardsPastTheWrapperAreAveragedToo) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net());
    auto alone = make_net();
    const auto batch = global_batch(24, 0);
    const auto mine = share_of(batch, group);
    loss_of(ddp->forward(mine), mine).backward();
    loss_of(alone->forward(batch), batch).backward();
    expect_close(gradients_of(ddp.parameters()), gradients_of(alone->parameters()));
  });
}

LOCKSTEP_DDP_WORLDS(NoSyncTest, World("shm", 2), World("shm", 3), World("gloo", 2), World("hybrid", 3));

}  // namespace
}  // namespace lockstep::testing
