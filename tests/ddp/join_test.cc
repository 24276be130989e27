// Uneven inputs: the average is over the ranks that still have input. A rank that has joined takes part in
// every collective of the others, and finally takes over the model of the last rank.
#include "ddp/training.h"

namespace lockstep::testing {
namespace {

class JoinTest : public DdpTest {};

// Rank r has `batches[r]` batches. In each step, the result must be that of one process with the batches of
// the ranks that still have one.
void train_unevenly(ProcessGroup& group, const std::vector<int>& batches, DdpOptions options = {}) {
  auto alone = make_net();
  DistributedDataParallel ddp(make_net(), default_group(), options);
  torch::optim::SGD optimizer(ddp.parameters(), 0.05), reference(alone->parameters(), 0.05);
  const auto batch_of = [](int rank, int step) { return global_batch(6, 100 * rank + step); };
  {
    Join join(ddp);
    for (int step = 0; step < batches[group.rank()]; ++step) {
      optimizer.zero_grad();
      const auto mine = batch_of(group.rank(), step);
      loss_of(ddp(mine), mine).backward();
      optimizer.step();
    }
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
    reference.step();
  }
  expect_close(ddp.parameters(), alone->parameters(), 1e-4);
  expect_same_on_all_ranks(group, ddp.parameters());
  // Training continues with even inputs.
  optimizer.zero_grad();
  const auto mine = share_of(global_batch(24, 0), group);
  loss_of(ddp(mine), mine).backward();
  expect_same_on_all_ranks(group, gradients_of(ddp.parameters()));
}

TEST_P(JoinTest, AveragesOverThoseThatStillHaveInput) {
  run([&](ProcessGroup& group) {
    std::vector<int> batches = {2, 5, 3};
    batches.resize(group.world_size());
    train_unevenly(group, batches);
    std::reverse(batches.begin(), batches.end());
    train_unevenly(group, batches, {.find_unused_parameters = true});
    train_unevenly(group, batches, {.static_graph = true});
  });
}

TEST_P(JoinTest, ARankMayHaveNoInputAtAll) {
  run([&](ProcessGroup& group) {
    std::vector<int> batches(group.world_size(), 3);
    batches[0] = 0;  // rank 0, whose buffers and bucket order are used otherwise
    train_unevenly(group, batches);
    batches.assign(group.world_size(), 0);
    batches.back() = 2;
    train_unevenly(group, batches);
  });
}

TEST_P(JoinTest, NobodyHasInput) {
  run([&](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net());
    { Join join(ddp); }
    const auto mine = share_of(global_batch(24, 0), group);
    loss_of(ddp(mine), mine).backward();
  });
}

TEST_P(JoinTest, WithAccumulation) {
  run([&](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net());
    torch::optim::SGD optimizer(ddp.parameters(), 0.05);
    {
      Join join(ddp);
      for (int step = 0; step < 2 + group.rank(); ++step) {
        optimizer.zero_grad();
        for (int micro = 0; micro < 3; ++micro) {
          ddp.set_gradient_sync(micro == 2);
          const auto mine = global_batch(6, 10 * step + micro);
          loss_of(ddp(mine), mine).backward();
        }
        optimizer.step();
      }
    }
    expect_same_on_all_ranks(group, ddp.parameters());
  });
}

// A rank without input in the first epoch learns its graph in the second.
TEST_P(JoinTest, AStaticGraphThatARankSeesLate) {
  run([&](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net(), default_group(), {.static_graph = true});
    for (int epoch = 0; epoch < 2; ++epoch) {
      Join join(ddp);
      for (int step = 0; step < (epoch == 0 && group.rank() == 0 ? 0 : 2); ++step) {
        drop_gradients(ddp.parameters());
        const auto mine = global_batch(6, step);
        loss_of(ddp(mine), mine).backward();
      }
    }
  });
}

LOCKSTEP_DDP_WORLDS(JoinTest, World("shm", 2), World("shm", 3), World("gloo", 2), World("hybrid", 3));

TEST(JoinAlone, AnExceptionInTheLoopLeavesTheOthersWithAnError) {
  const auto outcomes = start_ranks(2, [](int) {
    auto group = init_process_group({.backend = "shm", .timeout = std::chrono::seconds(20)});
    DistributedDataParallel ddp(make_net());
    try {
      Join join(ddp);
      for (int step = 0; step < 5; ++step) {
        if (group->rank() == 1 && step == 2) throw std::runtime_error("broken data");
        const auto mine = global_batch(6, step);
        loss_of(ddp(mine), mine).backward();
      }
    } catch (const std::runtime_error& error) {
      if (group->rank() == 1) {
        EXPECT_STREQ(error.what(), "broken data");
        std::_Exit(::testing::Test::HasFailure() ? 1 : 7);
      }
      EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
      return;
    }
    ADD_FAILURE() << "no error";
  });
  EXPECT_EQ(outcomes[0].exit_status, 0) << outcomes[0].describe();
  EXPECT_EQ(outcomes[1].exit_status, 7) << outcomes[1].describe();
}

}  // namespace
}  // namespace lockstep::testing
