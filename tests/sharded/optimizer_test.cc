// A sharded optimizer does what LibTorch's does with averaged gradients, bit for bit.
#include <gmock/gmock.h>

#include "ddp/training.h"
#include "support/message_of.h"
#include "support/scratch_folder.h"

namespace lockstep::testing {
namespace {

class Sharded : public DdpTest {};

// One copy of the parameters for all ranks of a machine.
bool can_share(const ProcessGroup& group) { return group.world_size() > 1 && group.backend() != "gloo"; }

// The first rank of this rank's machine (environment_for() in support/run_ranks.h).
int first_here(const ProcessGroup& group) {
  const int others = (group.world_size() + 1) / 2;
  return group.backend() == "hybrid" && group.rank() >= others ? others : 0;
}

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
    EXPECT_THROW(optimizer.step(), UsageError);
  });
}

// A group that is added later begins with a state of its own.
TEST_P(Sharded, TakesMoreParametersLater) {
  run([](ProcessGroup& group) {
    const auto first_of = [](DdpBase& ddp) {
      const auto all = ddp.parameters();
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(Tensors(all.begin(), all.begin() + 3));
      return groups;
    };
    DistributedDataParallel plain(make_net(), default_group()), ddp(make_net(), default_group());
    torch::optim::Adam reference(first_of(plain), torch::optim::AdamOptions(0.01));
    ShardedOptimizer optimizer(ddp, first_of(ddp), std::make_unique<torch::optim::AdamOptions>(0.01));
    for (int step = 0; step < 6; ++step) {
      const auto mine = share_of(global_batch(24, step), group);
      const auto train = [&](auto& model, torch::optim::Optimizer& of) {
        if (step == 2) {
          const auto all = model.parameters();
          of.add_param_group(torch::optim::OptimizerParamGroup(Tensors(all.begin() + 3, all.end())));
        }
        drop_gradients(model.parameters());
        loss_of(model(mine), mine).backward();
        of.step();
      };
      train(plain, reference);
      train(ddp, optimizer);
      expect_close(ddp.parameters(), plain.parameters(), 1e-4);
    }
  });
}

// Rank r has `batches[r]` batches; ranks without input take part in the steps of the others.
void train_unevenly(ProcessGroup& group, std::vector<int> batches, DdpOptions options = {}) {
  batches.resize(group.world_size(), 1);
  auto alone = make_net();
  DistributedDataParallel ddp(make_net(), default_group(), options);
  ShardedOptimizer optimizer(ddp, torch::optim::SGDOptions(0.05).momentum(0.9));
  torch::optim::SGD reference(alone->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  torch::optim::StepLR schedule(optimizer, 2, 0.5), same_schedule(reference, 2, 0.5);
  const auto batch_of = [](int rank, int step) { return global_batch(6, 100 * rank + step); };
  constexpr double kMaxNorm = 0.3;
  {
    Join join(ddp);
    for (int step = 0; step < batches[group.rank()]; ++step) {
      optimizer.zero_grad();
      const auto mine = batch_of(group.rank(), step);
      loss_of(ddp(mine), mine).backward();
      if (step % 2 == 0) optimizer.clip_grad_norm(kMaxNorm);
      optimizer.step();
      schedule.step();
    }
    join.finish();
  }
  for (int step = 0; step < *std::max_element(batches.begin(), batches.end()); ++step) {
    at::Tensor total;
    int active = 0;
    for (int rank = 0; rank < group.world_size(); ++rank) {
      if (step >= batches[rank]) continue;
      ++active;
      const auto theirs = batch_of(rank, step);
      const auto loss = loss_of(alone->forward(theirs), theirs);
      total = total.defined() ? total + loss : loss;
    }
    reference.zero_grad();
    (total / active).backward();
    if (step % 2 == 0) clip_grad_norm_(alone->parameters(), kMaxNorm);
    reference.step();
    same_schedule.step();
  }
  {
    SCOPED_TRACE("at the end of the Join");
    expect_close(ddp.parameters(), alone->parameters(), 1e-4);
    expect_same_on_all_ranks(group, ddp.parameters());
  }
  // Training continues with even inputs, with the state of the whole run. A rank that had finished has not
  // stepped its schedule.
  for (auto* const of : {static_cast<torch::optim::Optimizer*>(&optimizer),
                         static_cast<torch::optim::Optimizer*>(&reference)}) {
    of->param_groups()[0].options().set_lr(0.02);
  }
  const auto batch = global_batch(24, 0);
  optimizer.zero_grad();
  loss_of(ddp(share_of(batch, group)), share_of(batch, group)).backward();
  optimizer.step();
  reference.zero_grad();
  loss_of(alone->forward(batch), batch).backward();
  reference.step();
  expect_close(ddp.parameters(), alone->parameters(), 1e-4);
}

TEST_P(Sharded, JoinsRanksWithFewerBatches) {
  run([](ProcessGroup& group) {
    train_unevenly(group, {2, 5, 3});
    train_unevenly(group, {5, 2, 3}, {.find_unused_parameters = true});
    train_unevenly(group, {0, 3, 3});
    if (!can_share(group)) return;
    train_unevenly(group, {5, 2, 3}, {.share_parameters = true});
  });
}

TEST_P(Sharded, UnderJoinTheRanksWithInputDoTheSame) {
  run([](ProcessGroup& group) {
    if (group.world_size() == 1) return;
    DistributedDataParallel ddp(make_net());
    ShardedOptimizer optimizer(ddp, torch::optim::SGDOptions(0.1));
    Join join(ddp);
    const auto mine = share_of(global_batch(24, 0), group);
    loss_of(ddp(mine), mine).backward();
    EXPECT_THAT(message_of<MismatchError>([&] {
                  if (group.rank() == 0) {
                    optimizer.step();
                  } else {
                    ddp(mine);
                  }
                }),
                ::testing::AllOf(::testing::HasSubstr("a forward pass"),
                                 ::testing::HasSubstr("rank 0 is in ShardedOptimizer::step")));
  });
}

// What reads gradients before they are averaged.
TEST_P(Sharded, RefusesToClipOwnGradients) {
  run([](ProcessGroup& group) {
    for (const bool average : {true, false}) {
      DistributedDataParallel ddp(make_net());
      ShardedOptimizer optimizer(ddp, torch::optim::SGDOptions(0.1), {.average_gradients = average});
      const auto mine = share_of(global_batch(24, 0), group);
      loss_of(ddp(mine), mine).backward();
      const auto clip = [&] { clip_grad_norm_(ddp.parameters(), 1); };
      if (average || group.world_size() == 1) {
        clip();
      } else {
        EXPECT_THAT(message_of<UsageError>(clip), ::testing::HasSubstr("optimizer.clip_grad_norm(max_norm)"));
      }
      optimizer.step();
    }
  });
}

TEST_P(Sharded, RefusesANormThatIsNotFinite) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net());
    ShardedOptimizer optimizer(ddp, torch::optim::SGDOptions(0.1));
    const auto mine = share_of(global_batch(24, 0), group);
    loss_of(ddp(mine), mine).backward();
    if (group.rank() == group.world_size() - 1) {
      ddp->second->bias.grad().data()[0] = std::numeric_limits<float>::infinity();
    }
    const auto said = message_of<Error>([&] { optimizer.clip_grad_norm(1, /*error_if_nonfinite=*/true); });
    EXPECT_THAT(said, ::testing::HasSubstr("the norm of the gradients is inf"));
    if (group.rank() == group.world_size() - 1) {
      EXPECT_THAT(said, ::testing::HasSubstr("'second.bias'"));
    }
  });
}

// torch::load gives parameters other memory.
TEST_P(Sharded, GoesOnWithLoadedParameters) {
  run([](ProcessGroup& group) {
    for (const bool share : can_share(group) ? std::vector{false, true} : std::vector{false}) {
      DistributedDataParallel plain(make_net()),
          ddp(make_net(), default_group(), {.share_parameters = share});
      torch::optim::Adam reference(plain.parameters(), 0.01);
      ShardedOptimizer optimizer(ddp, torch::optim::AdamOptions(0.01));
      for (int step = 0; step < 4; ++step) {
        const auto mine = share_of(global_batch(24, step), group);
        const auto train = [&](auto& model, torch::optim::Optimizer& of) {
          if (step == 2) {
            std::stringstream saved;
            torch::save(make_net(9), saved);
            torch::load(model, saved);
          }
          drop_gradients(model.parameters());
          loss_of(model(mine), mine).backward();
          of.step();
        };
        train(plain, reference);
        train(ddp, optimizer);
        expect_close(ddp.parameters(), plain.parameters(), 1e-4);
        expect_same_on_all_ranks(group, ddp.parameters());
      }
    }
  });
}

// LibTorch's optimizers go on with parameters whose gradients are zeros, and leave those without gradients.
TEST_P(Sharded, TreatsZerosAndMissingGradientsAsLibTorchDoes) {
  run([](ProcessGroup& group) {
    for (const bool zeros : {true, false}) {
      SCOPED_TRACE(zeros ? "zeros" : "missing");
      expect_same_loops(group, {}, [&](int step, auto& ddp, auto& optimizer) {
        ddp->second->weight.set_requires_grad(step < 2);
        for (const auto& parameter : ddp.parameters()) {
          if (zeros && parameter.grad().defined()) {
            parameter.mutable_grad().zero_();
          } else {
            parameter.mutable_grad() = at::Tensor();
          }
        }
        const auto mine = share_of(global_batch(24, step), group);
        loss_of(ddp(mine), mine).backward();
        if (step == 4) drop_gradients({ddp->first->bias});
        optimizer.step();
      });
    }
  });
}

TEST_P(Sharded, StepsAdagradInGroups) {
  run([](ProcessGroup& group) {
    const auto groups_of = [](DdpBase& ddp) {
      const auto all = ddp.parameters();
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(Tensors(all.begin(), all.begin() + 2));
      groups.emplace_back(Tensors(all.begin() + 2, all.end()),
                          std::make_unique<torch::optim::AdagradOptions>(0.02));
      return groups;
    };
    DistributedDataParallel plain(std::make_shared<Words>()), ddp(std::make_shared<Words>());
    torch::optim::Adagrad reference(groups_of(plain), torch::optim::AdagradOptions(0.05));
    ShardedOptimizer optimizer(ddp, groups_of(ddp), std::make_unique<torch::optim::AdagradOptions>(0.05));
    for (int step = 0; step < 4; ++step) {
      const auto indices = (torch::arange(12, at::kLong).view({3, 4}) * (group.rank() + 2) + step) % 20;
      for (auto* model : {&plain, &ddp}) {
        drop_gradients(model->parameters());
        (*model)(indices).pow(2).sum().backward();
      }
      reference.step();
      optimizer.step();
      expect_close(ddp.parameters(), plain.parameters());
    }
    optimizer.to_plain()->step();
  });
}

TEST_P(Sharded, RefusesGroupsOfSeveralKinds) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net());
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(ddp.parameters(), std::make_unique<torch::optim::SGDOptions>(0.1));
    EXPECT_THAT(message_of<UsageError>([&] {
                  ShardedOptimizer(ddp, std::move(groups), std::make_unique<torch::optim::AdamOptions>());
                }),
                ::testing::HasSubstr("it is Adam, and the options of group 0 are those of SGD"));
    static_cast<void>(group);
  });
}

TEST_P(Sharded, TakesOverOptimizersOfTheSameTensorsOnly) {
  run([](ProcessGroup&) {
    DistributedDataParallel ddp(make_net()), other(make_net());
    ShardedOptimizer optimizer(ddp, torch::optim::AdamOptions(0.1));
    torch::optim::Adam of_other(other.parameters(), 0.1);
    EXPECT_THAT(message_of<UsageError>([&] { optimizer.from_plain(of_other); }),
                ::testing::HasSubstr("parameter 0 of group 0 is not the same tensor"));
  });
}

TEST_P(Sharded, RefusesDifferentOptions) {
  run([](ProcessGroup& group) {
    if (group.world_size() == 1) return;
    DistributedDataParallel ddp(make_net());
    ShardedOptimizer optimizer(ddp, torch::optim::AdamOptions(0.01 * (group.rank() + 1)));
    const auto mine = share_of(global_batch(24, 0), group);
    loss_of(ddp(mine), mine).backward();
    EXPECT_THAT(message_of<MismatchError>([&] { optimizer.step(); }),
                ::testing::HasSubstr("lr of group 0 is 0.01 on rank 0, and 0.02 on rank 1"));
  });
}

// The gradients of the rank that only looks at them must not become another rank's parameters.
TEST_P(Sharded, ClippingOnOneRankOnlyChangesNothing) {
  run([](ProcessGroup& group) {
    if (group.world_size() == 1) return;
    DistributedDataParallel ddp(make_net(), default_group(), {.checks = false});
    ShardedOptimizer optimizer(ddp, torch::optim::SGDOptions(0.1));
    const auto mine = share_of(global_batch(24, 0), group);
    loss_of(ddp(mine), mine).backward();
    std::vector<at::Tensor> before;
    for (const auto& parameter : ddp.parameters()) before.push_back(parameter.detach().clone());
    EXPECT_THROW(
        {
          if (group.rank() == 0) optimizer.clip_grad_norm(1);
          optimizer.step();
        },
        Error);
    if (group.backend() == "shm") expect_close(ddp.parameters(), before, 0);
  });
}

TEST_P(Sharded, NeedsAveragesOfASynchronisedPass) {
  run([](ProcessGroup& group) {
    if (group.world_size() == 1) return;
    DistributedDataParallel ddp(make_net());
    ShardedOptimizer optimizer(ddp, torch::optim::SGDOptions(0.1), {.average_gradients = true});
    const auto mine = share_of(global_batch(24, 0), group);
    loss_of(ddp(mine), mine).backward();
    optimizer.step();
    {
      const auto guard = ddp.no_sync();
      loss_of(ddp(mine), mine).backward();
    }
    EXPECT_THAT(message_of<UsageError>([&] { optimizer.step(); }), ::testing::HasSubstr("under no_sync"));
  });
}

TEST_P(Sharded, RefusesTwoParametersInOneMemory) {
  run([](ProcessGroup& group) {
    if (group.world_size() == 1) return;
    auto net = make_net();
    net->third->bias.set_data(net->first->bias.detach().narrow(0, 2, 4));
    DistributedDataParallel ddp(net);
    ShardedOptimizer optimizer(ddp, torch::optim::SGDOptions(0.1));
    const auto mine = share_of(global_batch(24, 0), group);
    EXPECT_THAT(message_of<UsageError>([&] { loss_of(ddp(mine), mine).backward(); }),
                ::testing::AllOf(::testing::HasSubstr("'first.bias'"), ::testing::HasSubstr("'third.bias'")));
  });
}

// Unfreezing replaces the reducer, which has the gradients of the step.
TEST_P(Sharded, KeepsGradientsWhenParametersAreUnfrozenBeforeTheStep) {
  run([](ProcessGroup& group) {
    const auto make = [] {
      auto net = make_net();
      net->third->bias.set_requires_grad(false);
      return net;
    };
    DistributedDataParallel plain(make()), ddp(make());
    torch::optim::Adam reference(plain.parameters(), 0.01);
    ShardedOptimizer optimizer(ddp, torch::optim::AdamOptions(0.01));
    for (int step = 0; step < 5; ++step) {
      const auto train = [&](auto& model, torch::optim::Optimizer& of) {
        drop_gradients(model.parameters());
        const auto mine = share_of(global_batch(24, step), group);
        loss_of(model(mine), mine).backward();
        if (step == 2) model->third->bias.set_requires_grad(true);
        static_cast<void>(model->first);
        of.step();
      };
      train(plain, reference);
      train(ddp, optimizer);
      expect_close(ddp.parameters(), plain.parameters(), 1e-4);
    }
  });
}

TEST_P(Sharded, KeepsAPartOfTheState) {
  run([](ProcessGroup& group) {
    auto net = std::make_shared<Net>(512);
    DistributedDataParallel ddp(net);
    ShardedOptimizer optimizer(ddp, torch::optim::AdamOptions(0.01));
    const auto mine = share_of(global_batch(24, 0), group);
    loss_of(ddp(mine), mine).backward();
    optimizer.step();
    int64_t parameters = 0;
    for (const auto& parameter : ddp.parameters()) parameters += parameter.numel();
    const double whole = 8.0 * static_cast<double>(parameters);  // two floats each
    EXPECT_NEAR(static_cast<double>(optimizer.state_bytes()) / whole, 1.0 / group.world_size(), 0.02);
  });
}

// ---- One copy of the parameters for all ranks of a machine

// Parameters in a narrow type, computed with as floats.
struct Narrow : torch::nn::Module {
  explicit Narrow(at::ScalarType dtype) {
    torch::manual_seed(3);
    first = register_parameter("first", (torch::randn({32, 8}) * 0.3).to(dtype));
    second = register_parameter("second", (torch::randn({4, 32}) * 0.3).to(dtype));
  }
  at::Tensor forward(const at::Tensor& x) {
    return torch::linear(torch::relu(torch::linear(x, first.to(at::kFloat))), second.to(at::kFloat));
  }
  at::Tensor first, second;
};

TEST_P(Sharded, UpdatesFloatCopiesOfNarrowParameters) {
  run([](ProcessGroup& group) {
    if (group.world_size() == 1) return;
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(c10::toString(dtype));
      DistributedDataParallel plain(std::make_shared<Narrow>(dtype)), ddp(std::make_shared<Narrow>(dtype));
      Tensors floats;
      for (const auto& parameter : plain.parameters()) {
        floats.push_back(parameter.detach().to(at::kFloat).set_requires_grad(true));
      }
      torch::optim::AdamW reference(floats, torch::optim::AdamWOptions(1e-4));
      ShardedOptimizer optimizer(ddp, torch::optim::AdamWOptions(1e-4), {.master_parameters = true});
      for (int step = 0; step < 5; ++step) {
        const auto mine = share_of(global_batch(24, step), group);
        for (auto* model : {&plain, &ddp}) {
          drop_gradients(model->parameters());
          loss_of((*model)(mine), mine).backward();
        }
        optimizer.step();
        const auto there = plain.parameters(), here = ddp.parameters();
        for (size_t i = 0; i < floats.size(); ++i) {
          floats[i].mutable_grad() = there[i].grad().to(at::kFloat);
        }
        reference.step();
        for (size_t i = 0; i < floats.size(); ++i) {
          there[i].data().copy_(floats[i].detach());
          EXPECT_TRUE(at::allclose(here[i].to(at::kFloat), there[i].to(at::kFloat), 1e-2, 1e-4)) << i;
          EXPECT_TRUE(group.backend() != "shm" || same_bits(here[i], there[i])) << "parameter " << i;
        }
        expect_same_on_all_ranks(group, ddp.parameters());
      }
      const auto masters = optimizer.masters();
      ASSERT_EQ(masters.size(), floats.size());
      for (const auto& [parameter, master] : masters) {
        EXPECT_EQ(master.scalar_type(), at::kFloat);
        EXPECT_TRUE(same_bits(master.to(dtype), parameter.detach()));
        EXPECT_FALSE(at::equal(master, parameter.detach().to(at::kFloat))) << "it has no more bits";
      }
      optimizer.clip_grad_norm(0.1);
      optimizer.step();
      const auto next = optimizer.to_plain();
      if (dtype == at::kBFloat16) next->step();  // LibTorch 1.13 cannot step half on CPUs
    }
  });
}

TEST_P(Sharded, TrainsWithOneCopyOfTheParameters) {
  run([](ProcessGroup& group) {
    DistributedDataParallel plain(make_net());
    DistributedDataParallel ddp(make_net(), default_group(),
                                {.first_bucket_mb = 1e-3, .share_parameters = true});
    torch::optim::AdamW reference(plain.parameters(), 0.01);
    ShardedOptimizer optimizer(ddp, torch::optim::AdamWOptions(0.01));
    const auto train = [&](int step) {
      const auto mine = share_of(global_batch(24, step), group);
      for (auto* model : {&plain, &ddp}) {
        drop_gradients(model->parameters());
        loss_of((*model)(mine), mine).backward();
      }
      reference.step();
      optimizer.step();
    };
    if (group.backend() == "gloo") {
      EXPECT_THAT(message_of<UsageError>([&] { train(0); }), ::testing::HasSubstr("shares no memory"));
      return;
    }
    for (int step = 0; step < 6; ++step) {
      train(step);
      const auto here = ddp.parameters(), there = plain.parameters();
      for (size_t i = 0; i < here.size(); ++i) {
        EXPECT_TRUE(at::allclose(here[i], there[i], 1e-4, 1e-5)) << "parameter " << i;
        EXPECT_TRUE(group.backend() != "shm" || same_bits(here[i], there[i])) << "parameter " << i;
      }
      expect_same_on_all_ranks(group, ddp.parameters());
    }
    if (!can_share(group)) return;
    // It is one copy: what the first rank of a machine writes, its other ranks read.
    const at::NoGradGuard no_grad;
    const int first = first_here(group);
    group.barrier();  // the others may still be looking
    if (group.rank() == first) ddp->third->bias.fill_(100 + first);
    group.barrier();
    EXPECT_EQ(ddp->third->bias[0].item<float>(), 100 + first);
    group.barrier();
  });
}

TEST_P(Sharded, NoticesChangesOfTheOneCopy) {
  run([](ProcessGroup& group) {
    if (!can_share(group)) return;
    DistributedDataParallel ddp(make_net(), default_group(), {.share_parameters = true});
    ShardedOptimizer optimizer(ddp, torch::optim::AdamOptions(0.01));
    const auto step = [&](int number) {
      optimizer.zero_grad();
      const auto mine = share_of(global_batch(24, number), group);
      loss_of(ddp(mine), mine).backward();
      optimizer.step();
    };
    const auto change = [&] {
      const at::NoGradGuard no_grad;
      group.barrier();
      if (group.rank() == first_here(group)) {
        for (auto parameter : ddp.parameters()) parameter.mul_(0.5);
      }
      group.barrier();
    };
    for (int number = 0; number < 3; ++number) step(number);
    change();
    ddp.refresh();
    for (int number = 3; number < 6; ++number) step(number);
    expect_same_on_all_ranks(group, ddp.parameters());
    change();
    EXPECT_THAT(message_of<Error>([&] { step(6); }),
                ::testing::HasSubstr("was changed between two steps of the optimizer"));
  });
}

TEST_P(Sharded, OneCopyNeedsAShardedOptimizer) {
  run([](ProcessGroup& group) {
    if (!can_share(group)) return;
    DistributedDataParallel ddp(make_net(), default_group(), {.share_parameters = true});
    const auto mine = share_of(global_batch(24, 0), group);
    EXPECT_THAT(message_of<UsageError>([&] { ddp(mine); }), ::testing::HasSubstr("no ShardedOptimizer"));
    const at::NoGradGuard no_grad;
    ddp(mine);
  });
}

LOCKSTEP_DDP_WORLDS(Sharded, World("shm", 1), World("shm", 2), World("shm", 3), World("gloo", 2),
                    World("hybrid", 3));

// LibTorch's own functions cannot know; the step notices that they have changed gradients.
TEST(ShardedGradients, AChangeBeforeTheStepIsAWarning) {
  const auto output_of = [](bool clips) {
    const auto outcomes = start_ranks(2, [&](int) {
      auto group = init_process_group({.backend = "shm", .timeout = std::chrono::seconds(20)});
      DistributedDataParallel ddp(make_net(), group);
      ShardedOptimizer optimizer(ddp, torch::optim::SGDOptions(0.1));
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad();
        const auto mine = share_of(global_batch(24, step), *group);
        for (int micro = 0; micro < 2; ++micro) {
          ddp.set_gradient_sync(micro == 1);
          loss_of(ddp(mine), mine).backward();
        }
        if (clips) torch::nn::utils::clip_grad_norm_(ddp.parameters(), 1e-3);
        optimizer.step();
      }
    });
    expect_success(outcomes);
    return outcomes[0].output;
  };
  EXPECT_EQ(output_of(false), "");
  const auto said = output_of(true);
  EXPECT_THAT(said, ::testing::AllOf(::testing::HasSubstr("was changed between backward and step"),
                                     ::testing::HasSubstr("optimizer.clip_grad_norm(max_norm)")));
  EXPECT_EQ(said.find("warning"), said.rfind("warning")) << said;
}

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

// Without the float copies, the steps after a resume would begin at rounded parameters.
TEST(ShardedSnapshots, ResumeFloatCopies) {
  const ScratchFolder directory;
  const auto run = [&](ProcessGroup& group, int64_t from, int64_t to) {
    DistributedDataParallel ddp(std::make_shared<Narrow>(at::kBFloat16), default_group(), {.checks = false});
    ShardedOptimizer optimizer(ddp, torch::optim::AdamOptions(1e-4), {.master_parameters = true});
    Snapshots snapshots(directory / "run");
    EXPECT_EQ(snapshots.resume(ddp, optimizer).step, from);
    for (auto number = from; number < to; ++number) {
      drop_gradients(ddp.parameters());
      const auto batch = global_batch(24, static_cast<int>(number));  // the same for every rank
      loss_of(ddp(batch), batch).backward();
      optimizer.step();
      if (number == 2) snapshots.save(ddp, optimizer, {.step = 3});
    }
    if (group.rank() != 0) return;
    const auto path = directory / ("end" + std::to_string(from));
    torch::save(ddp.parameters(), path);
  };
  run_ranks(2, "shm", [&](ProcessGroup& group) { run(group, 0, 6); });
  run_ranks(3, "shm", [&](ProcessGroup& group) { run(group, 3, 6); });
  Tensors whole, resumed;
  torch::load(whole, directory / "end0");
  torch::load(resumed, directory / "end3");
  ASSERT_EQ(whole.size(), 2U);
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(same_bits(whole[i].detach(), resumed[i].detach()));
}

}  // namespace
}  // namespace lockstep::testing
