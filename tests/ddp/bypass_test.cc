// Modules that are called without the wrapper, as ddp->forward(x), train the same way as with ddp(x).
#include <gmock/gmock.h>

#include "ddp/training.h"
#include "support/message_of.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct NormedLine : torch::nn::Module {
  NormedLine()
      : first(register_module("first", torch::nn::Linear(8, 8))),
        norm(register_module("norm", torch::nn::BatchNorm1d(8))),
        second(register_module("second", torch::nn::Linear(8, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return second->forward(norm->forward(first->forward(x))); }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear second;
};

std::shared_ptr<NormedLine> make_normed_line() {
  torch::manual_seed(6);
  return std::make_shared<NormedLine>();
}

struct TwoWays : torch::nn::Module {
  TwoWays()
      : left(register_module("left", torch::nn::Linear(8, 4))),
        right(register_module("right", torch::nn::Linear(8, 4))) {}
  at::Tensor forward(const at::Tensor& x, bool use_left) {
    return use_left ? left->forward(x) : right->forward(x);
  }
  torch::nn::Linear left, right;
};

class Bypass : public DdpTest {};

// Twelve micro-batches; every fourth one is synchronised. Both ways give the same bits.
TEST_P(Bypass, NoSyncBuffersAndParametersAreThoseOfTheWrapper) {
  run([](ProcessGroup& group) {
    const auto train = [&](bool past) {
      DistributedDataParallel ddp(make_normed_line());
      torch::optim::SGD optimizer(ddp.parameters(), 0.1);
      for (int step = 0; step < 12; ++step) {
        const auto mine = share_of(global_batch(24, step), group);
        const bool last = step % 4 == 3;
        std::optional<NoSync> guard;
        if (!last) guard.emplace(ddp.no_sync());
        loss_of(past ? ddp->forward(mine) : ddp(mine), mine).backward();
        if (!last) continue;
        optimizer.step();
        optimizer.zero_grad();
      }
      EXPECT_EQ(ddp.stats().steps, 3);
      return ddp.module();
    };
    const auto by_wrapper = train(false), past_it = train(true);
    expect_same_on_all_ranks(group, past_it->parameters());
    expect_same_on_all_ranks(group, past_it->buffers());
    for (size_t i = 0; i < past_it->parameters().size(); ++i) {
      EXPECT_TRUE(same_bits(past_it->parameters()[i], by_wrapper->parameters()[i])) << i;
    }
    // After the wrapper's last forward, each rank has statistics of its own. Those of rank 0 count.
    for (size_t i = 0; i < past_it->buffers().size(); ++i) {
      auto of_rank_0 = by_wrapper->buffers()[i].clone();
      group.broadcast(of_rank_0);
      EXPECT_TRUE(same_bits(past_it->buffers()[i], of_rank_0)) << i;
    }
  });
}

TEST_P(Bypass, UnusedParametersAreFoundAtTheEndOfThePass) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(std::make_shared<TwoWays>(), default_group(),
                                {.find_unused_parameters = true});
    for (int step = 0; step < 4; ++step) {
      drop_gradients(ddp.parameters());
      const auto mine = share_of(global_batch(24, step), group);
      // In step 2, only rank 0 uses the left layer; in the other steps, no rank does.
      const bool left = step == 2 && group.rank() == 0;
      loss_of(step == 1 ? ddp(mine, left) : ddp->forward(mine, left), mine).backward();
      EXPECT_EQ(ddp->left->weight.grad().defined(), step == 2);
      if (step == 2) expect_same_on_all_ranks(group, {ddp->left->weight.grad()});
      expect_same_on_all_ranks(group, {ddp->right->weight.grad()});
    }
  });
}

TEST_P(Bypass, UnfrozenAndConvertedParametersAreTakenOn) {
  run([](ProcessGroup& group) {
    for (const bool by_arrow : {true, false}) {
      auto net = make_net();
      net->first->weight.requires_grad_(false);
      DistributedDataParallel ddp(net, default_group(), {.verify_every = 1});
      auto mine = share_of(global_batch(24, 0), group);
      const auto step = [&] {
        drop_gradients(net->parameters());
        loss_of(by_arrow ? ddp->forward(mine) : net->forward(mine), mine).backward();
        for (const auto& gradient : gradients_of(net->parameters())) {
          if (gradient.defined()) expect_same_on_all_ranks(group, {gradient});
        }
      };
      step();
      net->first->weight.requires_grad_(true);
      step();
      step();
      EXPECT_TRUE(net->first->weight.grad().defined());
      if (!by_arrow) continue;
      net->to(at::kDouble);
      mine = mine.to(at::kDouble);
      step();
      step();
    }
  });
}

TEST_P(Bypass, UnderJoinItIsAnErrorThatNamesIt) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net());
    const auto mine = share_of(global_batch(24, 0), group);
    Join join(ddp);
    const auto message = message_of<Error>([&] { loss_of(ddp->forward(mine), mine).backward(); });
    EXPECT_THAT(message, AllOf(HasSubstr("ddp->forward"), HasSubstr("write ddp(x)")));
    EXPECT_THROW(join.finish(), Error);
  });
}

// Some ranks call the wrapper and some the module: correct if the model has no buffers, otherwise an error on
// all ranks.
TEST(BypassMixed, IsRightWithoutBuffersAndAnErrorWithThem) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    const auto call = [&](auto& ddp, const at::Tensor& x) {
      return group.rank() == 0 ? ddp(x) : ddp->forward(x);
    };
    DistributedDataParallel ddp(make_net());
    auto alone = make_net();
    for (int step = 0; step < 3; ++step) {
      drop_gradients(ddp.parameters());
      drop_gradients(alone->parameters());
      const auto batch = global_batch(24, step);
      const auto mine = share_of(batch, group);
      loss_of(call(ddp, mine), mine).backward();
      loss_of(alone->forward(batch), batch).backward();
      expect_close(gradients_of(ddp.parameters()), gradients_of(alone->parameters()));
    }
    DistributedDataParallel normed(make_normed_line());
    const auto mine = share_of(global_batch(24, 0), group);
    const auto message = message_of<MismatchError>([&] { loss_of(call(normed, mine), mine).backward(); });
    if (group.rank() == 0) {
      EXPECT_THAT(message, HasSubstr("DDP buffers, before forward"));
    }
  });
}

// If lockstep finds no tensors in an output, the pass resembles one without the wrapper. But the wrapper has
// seen its forward.
struct Hidden {
  at::Tensor scores;  // no visit_tensors
};
struct Hiding : torch::nn::Module {
  Hiding() : inner(register_module("inner", std::make_shared<NormedLine>())) {}
  Hidden forward(const at::Tensor& x) { return {inner->forward(x)}; }
  std::shared_ptr<NormedLine> inner;
};

TEST_P(Bypass, OutputsThatHideTheirTensorsBelongToTheWrapper) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(std::make_shared<Hiding>());
    const auto mine = share_of(global_batch(24, 0), group);
    Hidden hidden;
    {
      const auto guard = ddp.no_sync();
      hidden = ddp(mine);
    }
    loss_of(hidden.scores, mine).backward();  // its forward was under the guard
    EXPECT_EQ(ddp.stats().steps, 0);
    loss_of(ddp(mine).scores, mine).backward();
    EXPECT_EQ(ddp.stats().steps, 1);
    expect_same_on_all_ranks(group, gradients_of(ddp.parameters()));
    loss_of(ddp->forward(mine).scores, mine).backward();
    EXPECT_EQ(ddp.stats().steps, 2);
    expect_same_on_all_ranks(group, ddp.module()->buffers());
    Join join(ddp);
    loss_of(ddp(mine).scores, mine).backward();
  });
}

LOCKSTEP_DDP_WORLDS(Bypass, World("shm", 2), World("gloo", 2));

}  // namespace
}  // namespace lockstep::testing
