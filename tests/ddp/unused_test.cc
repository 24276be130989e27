// Parameters that take no part in a backward pass: found in the graph, reported as errors, or learned with
// static_graph.
#include <gmock/gmock.h>

#include "ddp/training.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A bit mask, passed to forward, selects the branches that are used.
struct Branches : torch::nn::Module {
  Branches() {
    for (int i = 0; i < 3; ++i) {
      branches.push_back(register_module("branch" + std::to_string(i), torch::nn::Linear(8, 4)));
    }
  }
  at::Tensor forward(const at::Tensor& x, int mask) {
    auto sum = torch::zeros({x.size(0), 4});
    for (int i = 0; i < 3; ++i) {
      if (mask & (1 << i)) sum = sum + branches[i]->forward(x);
    }
    return sum;
  }
  std::vector<torch::nn::Linear> branches;
};

std::shared_ptr<Branches> make_branches() {
  torch::manual_seed(2);
  return std::make_shared<Branches>();
}

class Unused : public DdpTest {};

// A parameter gets the average over all ranks; a rank that did not use it counts as zero. If no rank used it,
// its gradient does not change.
TEST_P(Unused, OnSomeRanksOrOnAll) {
  run([](ProcessGroup& group) {
    for (const bool as_view : {true, false}) {
      DistributedDataParallel ddp(make_branches(), default_group(),
                                  {.find_unused_parameters = true, .gradient_as_bucket_view = as_view});
      auto alone = make_branches();
      for (int step = 0; step < 4; ++step) {
        // All ranks use branch 0, only rank 0 uses branch 1. Branch 2 is used in the last step only.
        const auto mask_of = [&](int rank) { return 1 | (rank == 0 ? 2 : 0) | (step == 3 ? 4 : 0); };
        drop_gradients(ddp.parameters());
        drop_gradients(alone->parameters());
        const auto batch = global_batch(24, step);
        const auto mine = share_of(batch, group);
        loss_of(ddp(mine, mask_of(group.rank())), mine).backward();
        at::Tensor total;
        const auto rows = 24 / group.world_size();
        for (int rank = 0; rank < group.world_size(); ++rank) {
          const auto theirs = batch.narrow(0, rank * rows, rows);
          const auto loss = loss_of(alone->forward(theirs, mask_of(rank)), theirs) / group.world_size();
          total = total.defined() ? total + loss : loss;
        }
        total.backward();
        const auto got = gradients_of(ddp.parameters()), want = gradients_of(alone->parameters());
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(got[i].defined(), want[i].defined()) << "parameter " << i << " in step " << step;
          if (got[i].defined()) {
            EXPECT_TRUE(at::allclose(got[i], want[i], 1e-5, 1e-6)) << i;
          }
        }
      }
    }
  });
}

TEST_P(Unused, AGradientThatNobodyHasUsedStaysAsItWas) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_branches(), default_group(), {.find_unused_parameters = true});
    for (int step = 0; step < 3; ++step) {
      const auto mine = share_of(global_batch(24, step), group);
      // The first step uses all branches, so all gradients are in buckets.
      const int mask = step == 0 ? 7 : 3;
      loss_of(ddp(mine, mask), mine).backward();
      auto left_alone = ddp->branches[2]->weight.mutable_grad();
      if (step == 0) left_alone.fill_(0.1f);  // three times this, divided by three, differs
      EXPECT_TRUE(same_bits(left_alone, torch::full_like(left_alone, 0.1f)));
    }
  });
}

// An output of a user's type: its tensors are found with visit_tensors().
struct Answer {
  at::Tensor scores;
  std::map<std::string, at::Tensor> more;
};
template <class Visit>
void visit_tensors(const Answer& answer, Visit&& visit) {
  visit(answer.scores);
  visit(answer.more);
}

struct Nested : torch::nn::Module {
  Nested() : inner(register_module("inner", std::make_shared<Branches>())) {}
  Answer forward(const at::Tensor& x, int mask) {
    return {inner->forward(x, mask & 1), {{"aside", inner->forward(x, mask & 6)}}};
  }
  std::shared_ptr<Branches> inner;
};

// An output may be left out of the loss; the step must not stall.
TEST_P(Unused, OutputsMayBeDropped) {
  run([](ProcessGroup& group) {
    torch::manual_seed(2);
    DistributedDataParallel ddp(std::make_shared<Nested>(), default_group(),
                                {.find_unused_parameters = true});
    for (int step = 0; step < 4; ++step) {
      drop_gradients(ddp.parameters());
      const auto mine = share_of(global_batch(24, step), group);
      const auto answer = ddp(mine, 3);
      auto loss = loss_of(answer.scores, mine);
      if (step % 2 == 1) loss = loss + answer.more.at("aside").sum();
      loss.backward();
      expect_same_on_all_ranks(group, {ddp->inner->branches[0]->weight.grad()});
      EXPECT_EQ(ddp->inner->branches[1]->weight.grad().defined(), step % 2 == 1);
      EXPECT_FALSE(ddp->inner->branches[2]->weight.grad().defined());
    }
    // A forward whose outputs are all dropped changes nothing.
    const auto mine = share_of(global_batch(24, 0), group);
    ddp(mine, 7);
    loss_of(ddp(mine, 1).scores, mine).backward();
    expect_same_on_all_ranks(group, {ddp->inner->branches[0]->weight.grad()});
  });
}

// A backward pass may cover several forwards, synchronised or not, made before or after other backward
// passes.
TEST_P(Unused, SeveralForwardsOfDifferentReach) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_branches(), default_group(), {.find_unused_parameters = true});
    const auto mine = share_of(global_batch(24, 0), group);
    const auto forward = [&](int mask) { return loss_of(ddp(mine, mask), mine); };
    for (int step = 0; step < 3; ++step) {
      drop_gradients(ddp.parameters());
      auto a = forward(1), b = forward(2), c = forward(4);
      a.backward();
      (b + c).backward();
      at::Tensor local;
      {
        const auto guard = ddp.no_sync();
        local = forward(2);
      }
      (forward(1) + local).backward();
      expect_same_on_all_ranks(group, gradients_of(ddp.parameters()));
    }
  });
}

// If a parameter gets no gradient and the options do not allow that, all ranks get an error with its name.
TEST_P(Unused, NamesTheParametersOnEveryRank) {
  run([](ProcessGroup& group) {
    for (const int bad_step : {0, 1}) {
      auto own = group.new_group({0, 1});
      DistributedDataParallel ddp(make_branches(), own);
      for (int step = 0; step <= bad_step; ++step) {
        const auto mine = share_of(global_batch(24, step), group);
        // Rank 1 leaves out a branch.
        const bool bad = step == bad_step && group.rank() == 1;
        auto loss = loss_of(ddp(mine, bad ? 5 : 7), mine);
        if (step < bad_step) {
          loss.backward();
          continue;
        }
        try {
          loss.backward();
          ADD_FAILURE() << "no error on rank " << group.rank();
        } catch (const Error& error) {
          EXPECT_THAT(error.what(),
                      AllOf(HasSubstr("'branch1.weight', 'branch1.bias'"), HasSubstr("rank 1")));
          EXPECT_THAT(error.what(), HasSubstr("find_unused_parameters"));
        }
      }
    }
  });
}

TEST_P(Unused, ALossBesideForwardIsAnErrorWithWords) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_branches(), default_group(), {.find_unused_parameters = true});
    const auto mine = share_of(global_batch(24, 0), group);
    loss_of(ddp(mine, 7), mine).backward();
    auto loss = loss_of(ddp(mine, 3), mine) + ddp->branches[2]->weight.pow(2).sum();
    try {
      loss.backward();
      ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("branch2.weight"));
    }
  });
}

LOCKSTEP_DDP_WORLDS(Unused, World("shm", 2), World("gloo", 2), World("hybrid", 2));

// Activation checkpointing runs a backward pass inside the backward pass.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            torch::nn::LinearImpl* layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<int64_t>(layer);
    const torch::NoGradGuard no_grad;
    return torch::relu(layer->forward(x));
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    auto* layer = reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["layer"].toInt());
    const torch::AutoGradMode grad(true);
    const auto x = context->get_saved_variables()[0].detach().requires_grad_(true);
    torch::relu(layer->forward(x)).backward(gradients[0]);
    return {x.grad(), at::Tensor()};
  }
};

// A checkpointed layer that runs twice, so its gradient is computed twice. With static_graph, the number is
// learned in the first pass and checked later.
struct Checkpointed : torch::nn::Module {
  Checkpointed()
      : before(register_module("before", torch::nn::Linear(8, 8))),
        twice(register_module("twice", torch::nn::Linear(8, 8))),
        never(register_module("never", torch::nn::Linear(2, 2))),
        after(register_module("after", torch::nn::Linear(8, 4))) {}
  at::Tensor forward(at::Tensor x) {
    x = before->forward(x);
    for (int i = 0; i < times; ++i) {
      x = checkpoint ? Checkpoint::apply(x, twice.get()) : torch::relu(twice->forward(x));
    }
    return after->forward(x);
  }
  torch::nn::Linear before, twice, never, after;
  bool checkpoint = true;
  int times = 2;
};

class StaticGraph : public DdpTest {};

TEST_P(StaticGraph, TwiceThroughACheckpointedLayer) {
  run([](ProcessGroup& group) {
    torch::manual_seed(4);
    auto alone = std::make_shared<Checkpointed>();
    alone->checkpoint = false;
    torch::manual_seed(4);
    DistributedDataParallel ddp(std::make_shared<Checkpointed>(), default_group(), {.static_graph = true});
    torch::optim::SGD optimizer(ddp.parameters(), 0.1), reference(alone->parameters(), 0.1);
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      reference.zero_grad();
      const auto batch = global_batch(24, step);
      const auto mine = share_of(batch, group);
      loss_of(alone->forward(batch), batch).backward();
      loss_of(ddp(mine), mine).backward();
      EXPECT_TRUE(at::allclose(ddp->twice->weight.grad(), alone->twice->weight.grad(), 1e-4, 1e-6));
      EXPECT_FALSE(ddp->never->weight.grad().defined());
      optimizer.step();
      reference.step();
      expect_same_on_all_ranks(group, ddp.parameters());
    }
    ddp->times = 3;
    const auto mine = share_of(global_batch(24, 0), group);
    auto loss = loss_of(ddp(mine), mine);
    EXPECT_THROW(loss.backward(), UsageError);
  });
}

TEST_P(StaticGraph, TogetherWithUnusedParameters) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(std::make_shared<Checkpointed>(), default_group(),
                                {.find_unused_parameters = true, .static_graph = true});
    for (int step = 0; step < 3; ++step) {
      drop_gradients(ddp.parameters());
      const auto mine = share_of(global_batch(24, step), group);
      loss_of(ddp(mine), mine).backward();
      expect_same_on_all_ranks(group, {ddp->twice->weight.grad(), ddp->before->weight.grad()});
    }
  });
}

TEST_P(StaticGraph, AParameterUsedUnderNoSyncOnlyIsAnError) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_branches(), default_group(), {.static_graph = true});
    const auto mine = share_of(global_batch(24, 0), group);
    loss_of(ddp(mine, 3), mine).backward();
    {
      const auto guard = ddp.no_sync();
      loss_of(ddp(mine, 7), mine).backward();
    }
    auto loss = loss_of(ddp(mine, 3), mine);
    EXPECT_THROW(loss.backward(), UsageError);
  });
}

// With static_graph, the ranks may use different parameters.
TEST_P(StaticGraph, UsedOnSomeRanksOnly) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_branches(), default_group(), {.static_graph = true});
    auto alone = make_branches();
    for (int step = 0; step < 3; ++step) {
      drop_gradients(ddp.parameters());
      drop_gradients(alone->parameters());
      const auto batch = global_batch(24, step);
      const auto mine = share_of(batch, group);
      loss_of(ddp(mine, group.rank() == 0 ? 3 : 1), mine).backward();
      at::Tensor total = torch::zeros({});
      for (int rank = 0; rank < group.world_size(); ++rank) {
        const auto theirs = batch.chunk(group.world_size())[rank];
        total = total + loss_of(alone->forward(theirs, rank == 0 ? 3 : 1), theirs) / group.world_size();
      }
      total.backward();
      for (int i = 0; i < 2; ++i) {
        EXPECT_TRUE(
            at::allclose(ddp->branches[i]->weight.grad(), alone->branches[i]->weight.grad(), 1e-5, 1e-6));
      }
      EXPECT_FALSE(ddp->branches[2]->weight.grad().defined());
    }
  });
}

TEST_P(StaticGraph, WithoutItTheSecondGradientIsAnError) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(std::make_shared<Checkpointed>(), default_group(),
                                {.find_unused_parameters = true});
    const auto mine = share_of(global_batch(24, 0), group);
    auto loss = loss_of(ddp(mine), mine);
    try {
      loss.backward();
      ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("twice."), HasSubstr("static_graph")));
    }
  });
}

LOCKSTEP_DDP_WORLDS(StaticGraph, World("shm", 2), World("gloo", 2));

}  // namespace
}  // namespace lockstep::testing
