// A sharded optimizer does what LibTorch's does with averaged gradients, bit for bit.
#include <gmock/gmock.h>

#include "ddp/training.h"
#include "support/message_of.h"
#include "support/scratch_folder.h"

namespace lockstep::testing {
namespace {

class Sharded : public DdpTest {};

// Trains two equal models: with LibTorch's optimizer and with the sharded one.
template <class Plain, class Options>
void expect_same_training(ProcessGroup& group, const Options& options) {
  // Over Gloo, an all-reduce adds in another order than a reduce-scatter does.
  const bool same_sums = group.backend() == "shm" || group.world_size() == 1;
  for (const bool average : {true, false}) {
    SCOPED_TRACE(average ? "averages in .grad" : "own gradients in .grad");
    DistributedDataParallel plain(make_net(), default_group(), {.first_bucket_mb = 1e-3});
    DistributedDataParallel ddp(make_net(), default_group(), {.first_bucket_mb = 1e-3});
    Plain reference(plain.parameters(), options);
    ShardedOptimizer optimizer(ddp, options, {.average_gradients = average});
    for (int step = 0; step < 6; ++step) {
      SCOPED_TRACE(step);
      const auto mine = share_of(global_batch(24, step), group);
      reference.zero_grad();
      loss_of(plain(mine), mine).backward();
      reference.step();
      if (step % 2 == 0) {
        optimizer.zero_grad();
      } else {
        drop_gradients(ddp.parameters());
      }
      loss_of(ddp(mine), mine).backward();
      optimizer.step();
      expect_same_on_all_ranks(group, ddp.parameters());
      const auto here = ddp.parameters(), there = plain.parameters();
      for (size_t i = 0; i < here.size(); ++i) {
        if (same_sums || average) {
          EXPECT_TRUE(same_bits(here[i], there[i])) << "parameter " << i;
        } else {
          EXPECT_TRUE(at::allclose(here[i], there[i], 1e-4, 1e-5)) << "parameter " << i;
        }
      }
    }
  }
}

TEST_P(Sharded, TrainsAsLibTorchsOptimizers) {
  run([](ProcessGroup& group) {
    namespace optim = torch::optim;
    expect_same_training<optim::SGD>(group, optim::SGDOptions(0.05));
    expect_same_training<optim::SGD>(group,
                                     optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01).nesterov(true));
    expect_same_training<optim::SGD>(group, optim::SGDOptions(0.05).momentum(0.9).dampening(0.2));
    expect_same_training<optim::Adam>(group, optim::AdamOptions(0.01));
    expect_same_training<optim::Adam>(group, optim::AdamOptions(0.01).weight_decay(0.1).amsgrad(true));
    expect_same_training<optim::AdamW>(group, optim::AdamWOptions(0.01));
    expect_same_training<optim::AdamW>(group, optim::AdamWOptions(0.01).amsgrad(true));
    expect_same_training<optim::Adagrad>(
        group, optim::AdagradOptions(0.01).lr_decay(0.1).initial_accumulator_value(0.2));
    expect_same_training<optim::RMSprop>(group, optim::RMSpropOptions(0.01));
    expect_same_training<optim::RMSprop>(group, optim::RMSpropOptions(0.01).momentum(0.9).centered(true));
  });
}

// As many steps of a loop, with LibTorch's Adam and with the sharded one.
template <class Step>
void expect_same_loops(ProcessGroup& group, DdpOptions options, const Step& step) {
  DistributedDataParallel plain(make_net(), default_group(), options);
  DistributedDataParallel ddp(make_net(), default_group(), options);
  torch::optim::Adam reference(plain.parameters(), 0.01);
  ShardedOptimizer optimizer(ddp, torch::optim::AdamOptions(0.01));
  for (int i = 0; i < 6; ++i) {
    SCOPED_TRACE(i);
    step(i, plain, static_cast<torch::optim::Optimizer&>(reference));
    step(i, ddp, static_cast<torch::optim::Optimizer&>(optimizer));
    expect_same_on_all_ranks(group, ddp.parameters());
    const auto here = ddp.parameters(), there = plain.parameters();
    for (size_t p = 0; p < here.size(); ++p) {
      EXPECT_TRUE(at::allclose(here[p], there[p], 1e-4, 1e-5)) << "parameter " << p;
      EXPECT_TRUE(group.backend() != "shm" || same_bits(here[p], there[p])) << "parameter " << p;
    }
  }
}

TEST_P(Sharded, AccumulatesOverMicroBatches) {
  run([](ProcessGroup& group) {
    expect_same_loops(group, {}, [&](int step, auto& ddp, auto& optimizer) {
      optimizer.zero_grad();
      const auto mine = share_of(global_batch(96, step), group);
      for (int micro = 0; micro < 4; ++micro) {
        ddp.set_gradient_sync(micro == 3);
        const auto part = mine.chunk(4)[micro];
        (loss_of(ddp(part), part) / 4).backward();
      }
      optimizer.step();
    });
  });
}

TEST_P(Sharded, LeavesFrozenParametersAlone) {
  run([](ProcessGroup& group) {
    expect_same_loops(group, {}, [&](int step, auto& ddp, auto& optimizer) {
      ddp->second->weight.set_requires_grad(step < 2 || step > 3);
      drop_gradients(ddp.parameters());
      const auto mine = share_of(global_batch(24, step), group);
      loss_of(ddp(mine), mine).backward();
      optimizer.step();
    });
  });
}

TEST_P(Sharded, ClipsByTheNormOfTheAverage) {
  run([](ProcessGroup& group) {
    for (const double max_norm : {0.05, 1e3}) {
      expect_same_loops(group, {}, [&](int step, auto& ddp, auto& optimizer) {
        drop_gradients(ddp.parameters());
        const auto mine = share_of(global_batch(24, step), group);
        loss_of(ddp(mine), mine).backward();
        if (auto* const sharded = dynamic_cast<ShardedOptimizer*>(&optimizer)) {
          sharded->clip_grad_norm(max_norm);
        } else {
          clip_grad_norm_(ddp.parameters(), max_norm);
        }
        optimizer.step();
      });
    }
  });
}

TEST_P(Sharded, FollowsSchedulesAndGroups) {
  run([](ProcessGroup& group) {
    const auto groups_of = [](DdpBase& ddp) {
      const auto all = ddp.parameters();
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(Tensors(all.begin(), all.begin() + 2));
      groups.emplace_back(Tensors(all.begin() + 2, all.end()),
                          std::make_unique<torch::optim::AdamWOptions>(0.002));
      return groups;
    };
    DistributedDataParallel plain(make_net(), default_group()), ddp(make_net(), default_group());
    torch::optim::AdamW reference(groups_of(plain), torch::optim::AdamWOptions(0.01));
    ShardedOptimizer optimizer(ddp, groups_of(ddp), std::make_unique<torch::optim::AdamWOptions>(0.01));
    torch::optim::StepLR schedule(reference, 2, 0.5), same_schedule(optimizer, 2, 0.5);
    for (int step = 0; step < 6; ++step) {
      const auto mine = share_of(global_batch(24, step), group);
      drop_gradients(plain.parameters());
      drop_gradients(ddp.parameters());
      loss_of(plain(mine), mine).backward();
      loss_of(ddp(mine), mine).backward();
      reference.step();
      optimizer.step();
      schedule.step();
      same_schedule.step();
      expect_close(ddp.parameters(), plain.parameters(), 1e-4);
    }
  });
}

// Parameters that no rank uses keep their values; those that some ranks use get the average.
TEST_P(Sharded, LeavesUnusedParametersAlone) {
  run([](ProcessGroup& group) {
    expect_same_loops(group, {.find_unused_parameters = true}, [&](int step, auto& ddp, auto& optimizer) {
      drop_gradients(ddp.parameters());
      const auto mine = share_of(global_batch(24, step), group);
      // The third layer is used by some ranks in every step, by none in step 4.
      const bool whole = step != 4 && (step + group.rank()) % 2 == 0;
      auto hidden = torch::relu(ddp->first->forward(mine));
      hidden = torch::relu(ddp->second->forward(hidden));
      auto loss = hidden.pow(2).mean();
      if (whole) loss = loss + ddp->third->forward(hidden).pow(2).mean();
      loss.backward();
      optimizer.step();
    });
  });
}

struct Words : torch::nn::Module {
  Words() {
    torch::manual_seed(3);
    words = register_module("words", torch::nn::Embedding(torch::nn::EmbeddingOptions(20, 8).sparse(true)));
    precise = register_parameter("precise", torch::randn({8}, at::kDouble));
    linear = register_module("linear", torch::nn::Linear(8, 4));
  }
  at::Tensor forward(at::Tensor indices) {
    return linear->forward(words->forward(indices).mean(1) * precise.to(at::kFloat));
  }
  torch::nn::Embedding words{nullptr};
  torch::nn::Linear linear{nullptr};
  at::Tensor precise;
};

// Sparse gradients and other dtypes are left to LibTorch's optimizer.
TEST_P(Sharded, StepsEveryKindOfParameter) {
  run([](ProcessGroup& group) {
    DistributedDataParallel plain(std::make_shared<Words>(), default_group());
    DistributedDataParallel ddp(std::make_shared<Words>(), default_group());
    torch::optim::Adagrad reference(plain.parameters(), 0.05);
    ShardedOptimizer optimizer(ddp, torch::optim::AdagradOptions(0.05));
    for (int step = 0; step < 4; ++step) {
      const auto indices = (torch::arange(12, at::kLong).view({3, 4}) * (group.rank() + 2) + step) % 20;
      for (auto* model : {&plain, &ddp}) {
        drop_gradients(model->parameters());
        (*model)(indices).pow(2).sum().backward();
      }
      reference.step();
      optimizer.step();
      expect_close(ddp.parameters(), plain.parameters());
      expect_same_on_all_ranks(group, ddp.parameters());
    }
  });
}

TEST_P(Sharded, TakesTheAveragesOfAHook) {
  run([](ProcessGroup& group) {
    DistributedDataParallel plain(make_net(), default_group()), ddp(make_net(), default_group());
    plain.register_comm_hook(hooks::bf16_compress());
    ddp.register_comm_hook(hooks::bf16_compress());
    torch::optim::Adam reference(plain.parameters(), 0.01);
    ShardedOptimizer optimizer(ddp, torch::optim::AdamOptions(0.01));
    for (int step = 0; step < 4; ++step) {
      const auto mine = share_of(global_batch(24, step), group);
      for (auto* model : {&plain, &ddp}) {
        drop_gradients(model->parameters());
        loss_of((*model)(mine), mine).backward();
      }
      reference.step();
      optimizer.step();
      const auto here = ddp.parameters(), there = plain.parameters();
      for (size_t i = 0; i < here.size(); ++i) EXPECT_TRUE(same_bits(here[i], there[i])) << "parameter " << i;
    }
  });
}

// Buckets that are laid out anew: the state moves along.
TEST_P(Sharded, KeepsItsStateWhenParametersAreUnfrozen) {
  run([](ProcessGroup& group) {
    const auto train = [&](auto& ddp, auto& optimizer) {
      ddp->third->bias.set_requires_grad(false);
      for (int step = 0; step < 6; ++step) {
        if (step == 3) ddp->third->bias.set_requires_grad(true);
        drop_gradients(ddp.parameters());
        const auto mine = share_of(global_batch(24, step), group);
        loss_of(ddp(mine), mine).backward();
        optimizer.step();
      }
    };
    auto plain_net = make_net(), net = make_net();
    plain_net->third->bias.set_requires_grad(false);
    net->third->bias.set_requires_grad(false);
    DistributedDataParallel plain(plain_net, default_group()), ddp(net, default_group());
    torch::optim::Adam reference(plain.parameters(), 0.01);
    ShardedOptimizer optimizer(ddp, torch::optim::AdamOptions(0.01));
    train(plain, reference);
    train(ddp, optimizer);
    expect_close(ddp.parameters(), plain.parameters(), 1e-4);
    expect_same_on_all_ranks(group, ddp.parameters());
  });
}

// From the sharded optimizer to LibTorch's and back, in the middle of a run.
TEST_P(Sharded, GoesOnAsLibTorchsAndBack) {
  run([](ProcessGroup& group) {
    DistributedDataParallel plain(make_net(), default_group()), ddp(make_net(), default_group());
    torch::optim::AdamW reference(plain.parameters(), 0.01);
    const auto step = [&](auto& model, torch::optim::Optimizer& optimizer, int number) {
      drop_gradients(model.parameters());
      const auto mine = share_of(global_batch(24, number), group);
      loss_of(model(mine), mine).backward();
      optimizer.step();
    };
    std::unique_ptr<torch::optim::Optimizer> between;
    {
      ShardedOptimizer first(ddp, torch::optim::AdamWOptions(0.01));
      for (int number = 0; number < 3; ++number) step(ddp, first, number);
      between = first.to_plain();
    }
    for (int number = 3; number < 5; ++number) step(ddp, *between, number);
    ShardedOptimizer second(ddp, torch::optim::AdamWOptions(0.5));
    second.from_plain(*between);
    for (int number = 5; number < 8; ++number) step(ddp, second, number);
    for (int number = 0; number < 8; ++number) step(plain, reference, number);
    expect_close(ddp.parameters(), plain.parameters(), 1e-4);
    expect_same_on_all_ranks(group, ddp.parameters());
  });
}

TEST_P(Sharded, TakesNothingFromAnotherKind) {
  run([](ProcessGroup&) {
    DistributedDataParallel ddp(make_net(), default_group());
    ShardedOptimizer optimizer(ddp, torch::optim::AdamOptions(0.1));
    torch::optim::SGD other(ddp.parameters(), 0.1);
    EXPECT_THAT(message_of<UsageError>([&] { optimizer.from_plain(other); }),
                ::testing::HasSubstr("it is Adam, the other one SGD"));
  });
}

TEST_P(Sharded, NeedsASynchronisedPass) {
  run([](ProcessGroup& group) {
    if (group.world_size() == 1) return;
    DistributedDataParallel ddp(make_net(), default_group());
    ShardedOptimizer optimizer(ddp, torch::optim::SGDOptions(0.1));
    EXPECT_THROW(ShardedOptimizer(ddp, torch::optim::SGDOptions(0.1)), UsageError) << "there is one already";
    EXPECT_THROW(Join join(ddp), UsageError);
    EXPECT_THROW(optimizer.step(), UsageError);
  });
}

LOCKSTEP_DDP_WORLDS(Sharded, World("shm", 1), World("shm", 2), World("shm", 3), World("gloo", 2),
                    World("hybrid", 3));

// Saved by two ranks, resumed by three, and by LibTorch's optimizer.
TEST(ShardedSnapshots, ResumeAnywhere) {
  const ScratchFolder directory;
  const auto train = [](auto& ddp, torch::optim::Optimizer& optimizer, int from, int to) {
    for (int number = from; number < to; ++number) {
      drop_gradients(ddp.parameters());
      const auto batch =
          global_batch(24, number);  // the same for every rank: the world size makes no difference
      loss_of(ddp(batch), batch).backward();
      optimizer.step();
    }
  };
  const auto expected = [&](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net(), default_group(), {.checks = false});
    torch::optim::Adam optimizer(ddp.parameters(), 0.01);
    train(ddp, optimizer, 0, 6);
    static_cast<void>(group);
    return ddp.parameters();
  };
  run_ranks(2, "shm", [&](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net(), default_group(), {.checks = false});
    ShardedOptimizer optimizer(ddp, torch::optim::AdamOptions(0.01));
    Snapshots snapshots(directory / "run");
    EXPECT_EQ(snapshots.resume(ddp, optimizer).step, 0);
    train(ddp, optimizer, 0, 3);
    snapshots.save(ddp, optimizer, {.step = 3});
    train(ddp, optimizer, 3, 6);
    expect_close(ddp.parameters(), expected(group));
  });
  for (const bool sharded : {true, false}) {
    run_ranks(sharded ? 3 : 1, "shm", [&](ProcessGroup& group) {
      DistributedDataParallel ddp(make_net(7), default_group(), {.checks = false});
      std::unique_ptr<torch::optim::Optimizer> optimizer;
      if (sharded) {
        optimizer = std::make_unique<ShardedOptimizer>(ddp, torch::optim::AdamOptions(0.5));
      } else {
        optimizer = std::make_unique<torch::optim::Adam>(ddp.parameters(), 0.5);
      }
      Snapshots snapshots(directory / "run", default_group(), {.read_only = true});
      EXPECT_EQ(snapshots.resume(ddp, *optimizer).step, 3);
      train(ddp, *optimizer, 3, 6);
      expect_close(ddp.parameters(), expected(group));
    });
  }
}

}  // namespace
}  // namespace lockstep::testing
