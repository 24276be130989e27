// A failure on one rank ends the step on all ranks, soon and with a clear message.
#include <gmock/gmock.h>

#include "ddp/training.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class Trouble : public ::testing::TestWithParam<const char*> {
 protected:
  // Every rank runs the body. Its error, "<kind>: <what>", is in the outcome.
  std::vector<RankOutcome> run(int world, const std::function<void(ProcessGroup& group)>& body,
                               std::chrono::seconds timeout = std::chrono::seconds(20)) {
    const std::string backend = GetParam();
    return start_ranks(world,
                       [&](int) {
                         auto group = init_process_group({.backend = backend, .timeout = timeout});
                         body(*group);
                       },
                       {.environment = environment_for(backend, world)});
  }
};

void train(DistributedDataParallel<Net>& ddp, ProcessGroup& group, int steps,
           const std::function<void(int)>& at) {
  torch::optim::SGD optimizer(ddp.parameters(), 0.05);
  for (int step = 0; step < steps; ++step) {
    at(step);
    const auto mine = share_of(global_batch(24, step), group);
    optimizer.zero_grad();
    loss_of(ddp(mine), mine).backward();
    optimizer.step();
  }
}

TEST_P(Trouble, AKilledRank) {
  const auto outcomes = run(2, [](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net());
    train(ddp, group, 6, [&](int step) { Fault::kill_at(1, 3).reach(group.rank(), step); });
  });
  EXPECT_EQ(outcomes[1].signal, 9);
  EXPECT_EQ(outcomes[0].exit_status, 1);
  EXPECT_THAT(outcomes[0].output, AllOf(HasSubstr("PeerLostError"), HasSubstr("rank 1")))
      << outcomes[0].describe();
}

// One rank is in its backward pass while the other calls all_reduce itself.
TEST_P(Trouble, ABucketMeetsAnotherCall) {
  const auto outcomes = run(2, [](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net());
    train(ddp, group, 6, [&](int step) {
      if (step == 3 && group.rank() == 1) group.all_reduce(torch::ones({3}));
    });
  });
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_status, 1);
    EXPECT_THAT(outcome.output,
                AllOf(HasSubstr("MismatchError: "), HasSubstr("the ranks do not make the same call"),
                      HasSubstr("all_reduce of 3 Float, Sum"), HasSubstr("hint:")))
        << outcome.describe();
  }
  EXPECT_THAT(outcomes[0].output, HasSubstr("DDP gradients, bucket 0 (")) << outcomes[0].describe();
}

TEST_P(Trouble, AnExceptionInForwardThatEndsTheRank) {
  const auto outcomes = run(2, [](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net());
    train(ddp, group, 6, [&](int step) {
      if (step == 3 && group.rank() == 1) throw std::runtime_error("broken data");
    });
  });
  EXPECT_THAT(outcomes[1].output, HasSubstr("broken data"));
  EXPECT_THAT(outcomes[0].output, AllOf(HasSubstr("PeerLostError"), HasSubstr("rank 1")))
      << outcomes[0].describe();
}

TEST_P(Trouble, AForwardOnSomeRanksOnly) {
  const auto outcomes = run(
      2,
      [](ProcessGroup& group) {
        DistributedDataParallel ddp(make_net());
        train(ddp, group, group.rank() == 0 ? 4 : 3, [](int) {});
        if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(6));
      },
      std::chrono::seconds(3));
  EXPECT_EQ(outcomes[1].exit_status, 0);
  EXPECT_THAT(outcomes[0].output, AllOf(HasSubstr("TimeoutError"), HasSubstr("rank 1")));
}

// An exception in the middle of a backward pass, when only some buckets have been launched.
struct Breaks : torch::autograd::Function<Breaks> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, bool breaks) {
    context->saved_data["breaks"] = breaks;
    return x.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    if (context->saved_data["breaks"].toBool()) throw std::runtime_error("broken backward");
    return {gradients[0], at::Tensor()};
  }
};
struct Fragile : torch::nn::Module {
  Fragile()
      : first(register_module("first", torch::nn::Linear(8, 8))),
        second(register_module("second", torch::nn::Linear(8, 4))) {}
  at::Tensor forward(const at::Tensor& x, bool breaks) {
    return second->forward(Breaks::apply(first->forward(x), breaks));
  }
  torch::nn::Linear first, second;
};

TEST_P(Trouble, AnInterruptedBackwardIsNotGoneOnFrom) {
  const auto outcomes = run(2, [](ProcessGroup& group) {
    DistributedDataParallel ddp(std::make_shared<Fragile>());
    for (int step = 0; step < 4; ++step) {
      const auto mine = share_of(global_batch(24, step), group);
      auto loss = loss_of(ddp(mine, step == 2 && group.rank() == 1), mine);
      try {
        loss.backward();
      } catch (const std::exception& error) {
        if (std::string(error.what()).find("broken backward") == std::string::npos) throw;
        // A careless user continues with the next batch.
      }
    }
  });
  EXPECT_THAT(outcomes[1].output, HasSubstr("the last backward pass did not complete"));
  EXPECT_THAT(outcomes[0].output, AllOf(HasSubstr("rank 1"), HasSubstr("did not complete")));
}

TEST_P(Trouble, UnderNoSyncAnInterruptedBackwardHarmsNobody) {
  const auto outcomes = run(2, [](ProcessGroup& group) {
    DistributedDataParallel ddp(std::make_shared<Fragile>());
    for (int step = 0; step < 4; ++step) {
      drop_gradients(ddp.parameters());
      const auto mine = share_of(global_batch(24, step), group);
      if (group.rank() == 1) {
        const auto guard = ddp.no_sync();
        auto loss = loss_of(ddp(mine, true), mine);
        EXPECT_THROW(loss.backward(), std::exception);
        drop_gradients(ddp.parameters());
      }
      loss_of(ddp(mine, false), mine).backward();
      expect_same_on_all_ranks(group, gradients_of(ddp.parameters()));
    }
  });
  expect_success(outcomes);
}

TEST_P(Trouble, TheWrapperMayGoBeforeTheModule) {
  const auto outcomes = run(2, [](ProcessGroup& group) {
    auto net = make_net();
    const auto mine = share_of(global_batch(24, 0), group);
    at::Tensor late;
    {
      DistributedDataParallel ddp(net);
      loss_of(ddp(mine), mine).backward();
      late = loss_of(ddp(mine), mine);
    }
    late.backward();  // without the wrapper, nothing is averaged
    drop_gradients(net->parameters());
    loss_of(net->forward(mine), mine).backward();
    const auto all = group.all_gather(net->first->weight.grad().clone());
    EXPECT_FALSE(same_bits(all[0], all[1]));
    DistributedDataParallel again(net);
    drop_gradients(net->parameters());
    loss_of(again(mine), mine).backward();
    expect_same_on_all_ranks(group, gradients_of(net->parameters()));
  });
  expect_success(outcomes);
}

INSTANTIATE_TEST_SUITE_P(Backends, Trouble, ::testing::Values("shm", "gloo", "hybrid"),
                         [](const auto& backend) { return std::string(backend.param); });

}  // namespace
}  // namespace lockstep::testing
