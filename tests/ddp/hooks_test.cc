// Communication hooks, and periodic averaging.
#include <gmock/gmock.h>
#include <numeric>

#include "ddp/training.h"

namespace lockstep::testing {
namespace {

class Hooks : public DdpTest {};

// Trains with and without a hook; returns the greatest difference between the parameters at the end.
double difference_after(ProcessGroup& group, const CommHook& hook, int steps) {
  DistributedDataParallel plain(make_net()), hooked(make_net());
  hooked.register_comm_hook(hook);
  torch::optim::SGD plain_optimizer(plain.parameters(), 0.05), hooked_optimizer(hooked.parameters(), 0.05);
  for (int step = 0; step < steps; ++step) {
    const auto mine = share_of(global_batch(24, step % 3), group);
    plain_optimizer.zero_grad();
    hooked_optimizer.zero_grad();
    loss_of(plain(mine), mine).backward();
    loss_of(hooked(mine), mine).backward();
    expect_same_on_all_ranks(group, gradients_of(hooked.parameters()));
    plain_optimizer.step();
    hooked_optimizer.step();
  }
  double difference = 0;
  for (size_t i = 0; i < plain.parameters().size(); ++i) {
    difference =
        std::max(difference, (plain.parameters()[i] - hooked.parameters()[i]).abs().max().item<double>());
  }
  return difference;
}

TEST_P(Hooks, SixteenBits) {
  run([](ProcessGroup& group) {
    const auto half = difference_after(group, hooks::fp16_compress(), 5);
    EXPECT_GT(half, 0);
    EXPECT_LT(half, 1e-3);
    const auto brain = difference_after(group, hooks::bf16_compress(), 5);
    EXPECT_GT(brain, 0);
    EXPECT_LT(brain, 1e-2);
  });
}

// The sum over the ranks would exceed the range of half, so hooks divide before they cast.
TEST_P(Hooks, DivideBeforeTheyCast) {
  struct Large : torch::nn::Module {
    Large() : w(register_parameter("w", torch::zeros({4}))) {}
    at::Tensor forward() { return (w * 40000).sum(); }
    at::Tensor w;
  };
  run([](ProcessGroup&) {
    DistributedDataParallel ddp(std::make_shared<Large>());
    ddp.register_comm_hook(hooks::fp16_compress());
    ddp().backward();
    EXPECT_TRUE(at::allclose(ddp->w.grad(), torch::full({4}, 40000.F), 1e-3));
  });
}

TEST_P(Hooks, OfTheUsersOwn) {
  run([](ProcessGroup& group) {
    // A tensor, a function to call later, or c10d's future: each returns the average.
    const CommHook kinds[] = {
        [](GradBucket& bucket, ProcessGroup& with) -> CommResult {
          with.all_reduce(bucket.buffer, ReduceOp::Avg);
          return bucket.buffer;
        },
        [](GradBucket& bucket, ProcessGroup& with) -> CommResult {
          auto work = with.all_reduce_async(bucket.buffer, ReduceOp::Avg);
          return [work, buffer = bucket.buffer]() mutable {
            work.wait();
            return buffer;
          };
        },
        [](GradBucket& bucket, ProcessGroup& with) -> CommResult {
          Tensors tensors = {bucket.buffer / bucket.participants};
          return with.c10d()->allreduce(tensors)->getFuture();
        },
    };
    for (const auto& kind : kinds) EXPECT_LT(difference_after(group, kind, 3), 1e-6);
    // The arguments of a hook.
    DistributedDataParallel ddp(make_net(), default_group(),
                                {.bucket_cap_mb = 0.0005, .first_bucket_mb = 0.0001});
    std::vector<std::string> names;
    int last = 0;
    size_t expected = 0;
    ddp.register_comm_hook([&](GradBucket& bucket, ProcessGroup& with) -> CommResult {
      EXPECT_EQ(bucket.index, expected++);
      EXPECT_EQ(bucket.names.size(), bucket.gradients.size());
      EXPECT_EQ(bucket.names.size(), bucket.parameters.size());
      EXPECT_EQ(bucket.participants, with.world_size());
      names.insert(names.end(), bucket.names.begin(), bucket.names.end());
      last += bucket.is_last ? 1 : 0;
      with.all_reduce(bucket.buffer, ReduceOp::Avg);
      return bucket.buffer;
    });
    const auto mine = share_of(global_batch(24, 0), group);
    loss_of(ddp(mine), mine).backward();
    EXPECT_EQ(names.size(), ddp.parameters().size());
    EXPECT_EQ(last, 1);
  });
}

TEST_P(Hooks, AnAnswerOfTheWrongSizeIsAnError) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net());
    ddp.register_comm_hook([](GradBucket&, ProcessGroup&) -> CommResult { return torch::zeros({3}); });
    const auto mine = share_of(global_batch(24, 0), group);
    auto loss = loss_of(ddp(mine), mine);
    EXPECT_THROW(loss.backward(), UsageError);
  });
}

TEST_P(Hooks, PowerSgdOfFullRankIsTheAverage) {
  run([](ProcessGroup& group) {
    // Either nothing is compressed, or everything, without loss. The first steps are ordinary ones.
    EXPECT_LT(difference_after(group, hooks::power_sgd({.rank = 1, .start_step = 100}), 5), 1e-6);
    EXPECT_LT(
        difference_after(group, hooks::power_sgd({.rank = 16, .start_step = 2, .min_compression = 0}), 5),
        1e-3);
  });
}

TEST_P(Hooks, PowerSgdLearns) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net());
    ddp.register_comm_hook(hooks::power_sgd({.rank = 1, .start_step = 2, .min_compression = 1.5}));
    torch::optim::SGD optimizer(ddp.parameters(), 0.05);
    double first = 0, last = 0;
    for (int step = 0; step < 60; ++step) {
      const auto mine = share_of(global_batch(24, 0), group);
      optimizer.zero_grad();
      auto loss = loss_of(ddp(mine), mine);
      loss.backward();
      optimizer.step();
      (step == 0 ? first : last) = loss.item<double>();
    }
    EXPECT_LT(last, first / 3);
    expect_same_on_all_ranks(group, ddp.parameters());
    ddp.verify_replicas();
  });
}

TEST_P(Hooks, LocalSgdAveragesTheModelNowAndThen) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net());
    ddp.register_comm_hook(hooks::local_sgd(/*start_step=*/2));
    PeriodicAverager averager(default_group(), {.period = 3, .warmup_steps = 2});
    torch::optim::SGD optimizer(ddp.parameters(), 0.05);
    for (int step = 0; step < 9; ++step) {
      const auto mine = share_of(global_batch(24, step), group);
      optimizer.zero_grad();
      loss_of(ddp(mine), mine).backward();
      optimizer.step();
      const bool averaged = averager.average(ddp.parameters());
      EXPECT_EQ(averaged, step >= 2 && (step - 2) % 3 == 0);
      const auto all = group.all_gather(ddp->first->weight.detach().clone());
      EXPECT_EQ(same_bits(all[0], all[1]), step < 2 || averaged) << step;
    }
  });
}

// Hooks do not see sparse gradients. The last bucket that a hook sees is still marked as the last.
TEST_P(Hooks, BesideSparseGradients) {
  struct EmbedsSparsely : torch::nn::Module {
    EmbedsSparsely()
        : table(
              register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 4).sparse(true)))),
          head(register_module("head", torch::nn::Linear(4, 2))) {}
    at::Tensor forward(const at::Tensor& words) { return head->forward(table->forward(words)); }
    torch::nn::Embedding table;
    torch::nn::Linear head;
  };
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(std::make_shared<EmbedsSparsely>());
    ddp.register_comm_hook(hooks::local_sgd(/*start_step=*/1));
    for (int step = 0; step < 2; ++step) {
      drop_gradients(ddp.parameters());
      ddp(at::remainder(torch::arange(6) * (group.rank() + 1), 9)).pow(2).sum().backward();
      const auto all = group.all_gather(ddp->head->weight.grad().clone());
      EXPECT_EQ(same_bits(all[0], all[1]), step == 0);
      expect_same_on_all_ranks(group, {ddp->table->weight.grad()});
    }
  });
}

TEST_P(Hooks, PowerSgdOutlivesAPlan) {
  run([](ProcessGroup& group) {
    auto net = make_net();
    net->second->weight.requires_grad_(false);
    DistributedDataParallel ddp(net);
    ddp.register_comm_hook(hooks::power_sgd({.rank = 2, .start_step = 0, .min_compression = 1}));
    for (int step = 0; step < 4; ++step) {
      if (step == 2) net->second->weight.requires_grad_(true);
      drop_gradients(ddp.parameters());
      const auto mine = share_of(global_batch(24, step), group);
      loss_of(ddp(mine), mine).backward();
      if (step >= 2) expect_same_on_all_ranks(group, gradients_of(ddp.parameters()));
    }
  });
}

// If the hook of one rank throws, the others do not wait for it.
TEST_P(Hooks, ThatThrowEndTheStepEverywhere) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net());
    ddp.register_comm_hook([&](GradBucket& bucket, ProcessGroup& with) -> CommResult {
      if (with.rank() == 1) throw std::runtime_error("the hook is broken");
      with.all_reduce(bucket.buffer, ReduceOp::Avg);
      return bucket.buffer;
    });
    const auto mine = share_of(global_batch(24, 0), group);
    auto loss = loss_of(ddp(mine), mine);
    try {
      loss.backward();
      ADD_FAILURE() << "no error";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("the hook is broken"));
    }
  });
}

// The thrown object need not be a std::exception.
TEST_P(Hooks, ThatThrowAnythingEndTheStepEverywhere) {
  run([](ProcessGroup& group) {
    for (const bool later : {false, true}) {
      const auto doomed = group.new_group([&] {
        std::vector<int> all(group.world_size());
        std::iota(all.begin(), all.end(), 0);
        return all;
      }());
      DistributedDataParallel ddp(make_net(), doomed);
      ddp.register_comm_hook([&](GradBucket& bucket, ProcessGroup& with) -> CommResult {
        if (with.rank() == 1 && !later) throw 42;
        auto work = std::make_shared<Work>(with.all_reduce_async(bucket.buffer, ReduceOp::Avg));
        return CommResult([&with, work, buffer = bucket.buffer, later]() -> at::Tensor {
          if (with.rank() == 1 && later) throw "nothing good";
          work->wait();
          return buffer;
        });
      });
      const auto mine = share_of(global_batch(24, 0), group);
      auto loss = loss_of(ddp(mine), mine);
      try {
        loss.backward();
        // A rank whose flights had already ended gets the error in its next call.
        doomed->barrier();
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("not a std::exception"));
      }
      EXPECT_THROW(doomed->barrier(), Error);
    }
  });
}

LOCKSTEP_DDP_WORLDS(Hooks, World("shm", 2), World("gloo", 2), World("shm", 3), World("hybrid", 3));

}  // namespace
}  // namespace lockstep::testing
