// Warnings about programs that run without an error but train incorrectly, and no warnings about correct
// ones.
#include <gmock/gmock.h>

#include "ddp/training.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Program {
  bool same_batches = false;
  double learning_rate_of_rank_1 = 0.1;
  int steps = 3;
  bool past_the_wrapper = false;
  at::Tensor constant_batch = {};
  DdpOptions options = {};
  CommHook hook = {};
};

// The output of rank 0.
std::string output_of(const Program& program) {
  const auto outcomes = start_ranks(2, [&](int rank) {
    auto group = init_process_group({.backend = "shm", .timeout = std::chrono::seconds(20)});
    DistributedDataParallel ddp(make_net(), group, program.options);
    if (program.hook) ddp.register_comm_hook(program.hook);
    torch::optim::SGD optimizer(ddp.parameters(), rank == 1 ? program.learning_rate_of_rank_1 : 0.1);
    for (int step = 0; step < program.steps; ++step) {
      optimizer.zero_grad();
      const auto batch = global_batch(24, step);
      auto mine = program.same_batches ? batch : share_of(batch, *group);
      if (program.constant_batch.defined()) mine = program.constant_batch;
      loss_of(program.past_the_wrapper ? ddp->forward(mine) : ddp(mine), mine).backward();
      optimizer.step();
    }
  });
  expect_success(outcomes);
  EXPECT_THAT(outcomes[1].output, Not(HasSubstr("warning")));
  return outcomes[0].output;
}

int warnings_in(const std::string& output) {
  int count = 0;
  for (size_t at = 0; (at = output.find("lockstep[0/2] warning", at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST(Checks, ARightProgramHearsNothing) {
  EXPECT_EQ(output_of({.steps = 20}), "");
  EXPECT_EQ(output_of({.steps = 20, .past_the_wrapper = true}), "");
}

TEST(Checks, TheSameBatchesOnAllRanks) {
  const auto output = output_of({.same_batches = true, .steps = 20});
  EXPECT_EQ(warnings_in(output), 1) << output;
  EXPECT_THAT(output, AllOf(HasSubstr("all ranks got the same batch"), HasSubstr("Float [24, 8]"),
                            HasSubstr("lockstep::DistributedSampler sampler(data.size().value(), group)"),
                            HasSubstr("seed_everything"), HasSubstr(".checks = false")));
  EXPECT_EQ(output_of({.same_batches = true, .options = {.checks = false}}), "");
  EXPECT_EQ(output_of({.steps = 20, .constant_batch = torch::ones({6, 8})}), "") << "constants are no batch";
  EXPECT_EQ(output_of({.steps = 20, .constant_batch = torch::arange(8.0F).view({1, 8})}), "")
      << "a few numbers may be the same";
}

TEST(Checks, OptimizersThatDiffer) {
  for (const bool past : {false, true}) {
    const auto output = output_of({.learning_rate_of_rank_1 = 0.2, .steps = 20, .past_the_wrapper = past});
    EXPECT_EQ(warnings_in(output), 1) << output;
    EXPECT_THAT(output, AllOf(HasSubstr("'first.weight' is not the same on all ranks after step 1"),
                              HasSubstr("rank 1"), HasSubstr("the last step moved 'third.bias' by"),
                              HasSubstr("learning rate"), HasSubstr(".checks = false")));
    // The distances show the learning rate of each rank.
    double of_rank_0 = 0, of_rank_1 = 0;
    const auto from = output.find("moved 'third.bias' by ");
    ASSERT_NE(from, std::string::npos);
    ASSERT_EQ(std::sscanf(output.c_str() + from, "moved 'third.bias' by %lf on rank 0, %lf on rank 1",
                          &of_rank_0, &of_rank_1),
              2);
    EXPECT_NEAR(of_rank_1 / of_rank_0, 2, 0.05);
  }
}

TEST(Checks, ReplicasThatDifferOnPurpose) {
  EXPECT_EQ(output_of({.learning_rate_of_rank_1 = 0.2, .options = {.checks = false}}), "");
  EXPECT_EQ(output_of({.learning_rate_of_rank_1 = 0.2, .options = {.init_sync = InitSync::None}}), "");
  EXPECT_EQ(output_of({.learning_rate_of_rank_1 = 0.2, .hook = hooks::local_sgd(0)}), "");
}

TEST(Checks, AParameterThatAppearedIsNamed) {
  const auto outcomes = start_ranks(2, [](int) {
    const auto group = init_process_group({.backend = "shm", .timeout = std::chrono::seconds(20)});
    auto net = make_net();
    DistributedDataParallel ddp(net, group);
    const auto late = net->register_parameter("late", torch::ones({4}));
    for (int step = 0; step < 2; ++step) {
      const auto mine = share_of(global_batch(24, step), *group);
      loss_of(ddp(mine) + late, mine).backward();
    }
    ddp.refresh();
    drop_gradients(ddp.parameters());
    const auto mine = share_of(global_batch(24, 2), *group);
    loss_of(ddp(mine) + late, mine).backward();
    expect_same_on_all_ranks(*group, {late.grad()});
  });
  expect_success(outcomes);
  EXPECT_EQ(warnings_in(outcomes[0].output), 1) << outcomes[0].output;
  EXPECT_THAT(outcomes[0].output,
              AllOf(HasSubstr("the gradient of 'late' is not averaged"), HasSubstr("ddp.refresh()")));
}

// A rank may evaluate alone, without the others. The checks count only the passes that all ranks make.
TEST(Checks, ForwardsOfOneRankAloneDoNotCount) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net());
    for (int step = 0; step < 4; ++step) {
      ddp.eval();
      if (group.rank() == 0) ddp(global_batch(24, step));
      ddp.train();
      const auto mine = share_of(global_batch(24, step), group);
      loss_of(ddp(mine), mine).backward();
    }
    expect_same_on_all_ranks(group, gradients_of(ddp.parameters()));
  });
}

}  // namespace
}  // namespace lockstep::testing
