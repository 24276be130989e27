// Where gradients are stored, how they travel in buckets, and the states of `.grad` that users create.
#include <gmock/gmock.h>

#include "ddp/training.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

class Gradients : public DdpTest {};

// Gradients may be undefined, zeroed, replaced, dropped or accumulated.
TEST_P(Gradients, SurviveWhatUsersDoToThem) {
  run([](ProcessGroup& group) {
    for (const bool as_view : {true, false}) {
      DistributedDataParallel ddp(make_net(), default_group(), {.gradient_as_bucket_view = as_view});
      auto alone = make_net();
      torch::optim::SGD optimizer(ddp.parameters(), 0.05), reference(alone->parameters(), 0.05);
      for (int step = 0; step < 7; ++step) {
        SCOPED_TRACE(step);
        const std::function<void(const Tensors&, torch::optim::Optimizer&)> prepare[] = {
            [](const Tensors&, torch::optim::Optimizer&) {},
            [](const Tensors&, torch::optim::Optimizer& o) { o.zero_grad(); },
            [](const Tensors& p, torch::optim::Optimizer&) { drop_gradients(p); },
            [](const Tensors& p, torch::optim::Optimizer&) {
              for (const auto& t : p) t.mutable_grad() = torch::full_like(t, 0.25);
            },
            [](const Tensors& p, torch::optim::Optimizer&) {
              for (size_t i = 0; i < p.size(); i += 2) p[i].mutable_grad() = at::Tensor();
            },
            [](const Tensors& p, torch::optim::Optimizer&) {
              for (const auto& t : p) t.mutable_grad().mul_(0.5);
            },
            [](const Tensors& p, torch::optim::Optimizer&) {
              for (const auto& t : p) t.mutable_grad() = t.grad().clone();
            }};
        prepare[step](ddp.parameters(), optimizer);
        prepare[step](alone->parameters(), reference);
        const auto batch = global_batch(24, step);
        const auto mine = share_of(batch, group);
        loss_of(alone->forward(batch), batch).backward();
        loss_of(ddp(mine), mine).backward();
        expect_close(gradients_of(ddp.parameters()), gradients_of(alone->parameters()));
        expect_same_on_all_ranks(group, gradients_of(ddp.parameters()));
        optimizer.step();
        reference.step();
      }
    }
  });
}

// 12 MiB in 24 tensors. Between machines, the default size of a bucket is smaller, to overlap more; a size
// that the user has chosen is kept.
TEST_P(Gradients, TravelInBucketsThatFitTheTransport) {
  run([](ProcessGroup& group) {
    constexpr int64_t kMiB = int64_t{1} << 20;
    const auto largest_bucket = [&](DdpOptions options) {
      torch::nn::Sequential net;
      for (int layer = 0; layer < 24; ++layer) net->push_back(torch::nn::Linear(256, 512));
      DistributedDataParallel ddp(net, default_group(), std::move(options));
      at::Tensor loss = torch::zeros({});
      for (const auto& parameter : ddp.parameters()) loss = loss + parameter.sum();
      loss.backward();
      int64_t largest = 0;
      for (const auto& bucket : ddp.stats().buckets) largest = std::max(largest, bucket.bytes);
      return largest;
    };
    const bool several_machines = group.num_nodes() > 1 && group.backend() == "hybrid";
    EXPECT_EQ(largest_bucket({}) > 6 * kMiB, !several_machines);
    EXPECT_GT(largest_bucket({.bucket_cap_mb = 24}), 6 * kMiB);
    EXPECT_LT(largest_bucket({.bucket_cap_mb = 1}), 2 * kMiB);
  });
}

// Zero copy: once a gradient is in its bucket, it stays there.
TEST_P(Gradients, StayWhereTheyAre) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net(), default_group());
    torch::optim::SGD optimizer(ddp.parameters(), 0.05);
    std::vector<void*> addresses;
    for (int step = 0; step < 4; ++step) {
      const auto mine = share_of(global_batch(24, step), group);
      loss_of(ddp(mine), mine).backward();
      std::vector<void*> now;
      for (const auto& gradient : gradients_of(ddp.parameters())) now.push_back(gradient.data_ptr());
      if (step > 0) {
        EXPECT_EQ(now, addresses);
      }
      addresses = now;
      optimizer.step();
      if (step % 2 == 0) {
        optimizer.zero_grad();
      } else {
        drop_gradients(ddp.parameters());
      }
    }
    // One copy of the gradients, and little more.
    int64_t bytes = 0;
    for (const auto& parameter : ddp.parameters()) bytes += static_cast<int64_t>(parameter.nbytes());
    EXPECT_LE(ddp.stats().bytes, bytes + 64 * static_cast<int64_t>(ddp.parameters().size()));
  });
}

// Many buckets, planned in the order in which gradients become ready.
TEST_P(Gradients, TravelInBucketsInTheOrderOfBackward) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net(), default_group(),
                                {.bucket_cap_mb = 0.0005, .first_bucket_mb = 0.0001});
    auto alone = make_net();
    for (int step = 0; step < 3; ++step) {
      drop_gradients(ddp.parameters());
      drop_gradients(alone->parameters());
      const auto batch = global_batch(24, step);
      const auto mine = share_of(batch, group);
      loss_of(alone->forward(batch), batch).backward();
      loss_of(ddp(mine), mine).backward();
      expect_close(gradients_of(ddp.parameters()), gradients_of(alone->parameters()));
    }
    const auto stats = ddp.stats();
    ASSERT_GT(stats.buckets.size(), 2U);
    EXPECT_THAT(stats.buckets.front().parameters.front(), HasSubstr("third."));
    EXPECT_THAT(stats.buckets.back().parameters.back(), HasSubstr("first."));
    for (const auto& bucket : stats.buckets) {
      EXPECT_LE(bucket.ready, bucket.launched);
      EXPECT_LE(bucket.launched, bucket.finished);
    }
    EXPECT_LE(stats.exposed, stats.communication);
    EXPECT_LE(stats.communication, stats.backward);
  });
}

// If gradients become ready in different orders, the ranks still launch their buckets in the same order.
TEST_P(Gradients, ReadyInAnotherOrderOnEachRank) {
  struct Flips : torch::nn::Module {
    Flips()
        : f(register_module("f", torch::nn::Linear(8, 8))),
          g(register_module("g", torch::nn::Linear(8, 8))),
          head(register_module("head", torch::nn::Linear(8, 4))) {}
    at::Tensor forward(const at::Tensor& x, bool flip) {
      return head->forward(flip ? f->forward(g->forward(x)) : g->forward(f->forward(x)));
    }
    torch::nn::Linear f, g, head;
  };
  run([](ProcessGroup& group) {
    torch::manual_seed(9);
    auto alone = std::make_shared<Flips>();
    torch::manual_seed(9);
    DistributedDataParallel ddp(std::make_shared<Flips>(), default_group(),
                                {.bucket_cap_mb = 1e-6, .first_bucket_mb = 1e-6});
    for (int step = 0; step < 4; ++step) {
      drop_gradients(ddp.parameters());
      drop_gradients(alone->parameters());
      const auto batch = global_batch(24, step);
      const auto flips = [&](int rank) { return (rank + step) % 2 == 1; };
      auto total = torch::zeros({});
      for (int rank = 0; rank < group.world_size(); ++rank) {
        const auto theirs = batch.chunk(group.world_size())[rank];
        total = total + loss_of(alone->forward(theirs, flips(rank)), theirs) / group.world_size();
      }
      total.backward();
      const auto mine = share_of(batch, group);
      loss_of(ddp(mine, flips(group.rank())), mine).backward();
      expect_close(gradients_of(ddp.parameters()), gradients_of(alone->parameters()));
      EXPECT_EQ(ddp.stats().buckets.size(), ddp.parameters().size());
    }
  });
}

// A bucket holds one dtype.
TEST_P(Gradients, OfSeveralDtypes) {
  struct Mixed : torch::nn::Module {
    Mixed()
        : a(register_parameter("a", torch::ones({5, 3}))),
          b(register_parameter("b", torch::ones({7}, at::kDouble))),
          c(register_parameter("c", torch::ones({4, 4}, at::kBFloat16))),
          d(register_parameter("d", torch::ones({11}))) {}
    at::Tensor forward(const at::Tensor& x) {
      return (x * a.sum()).sum().to(at::kDouble) + (b * b).sum() + (c * 3).sum().to(at::kDouble) + d.sum();
    }
    at::Tensor a, b, c, d;
  };
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(std::make_shared<Mixed>(), default_group());
    for (int step = 0; step < 2; ++step) {
      drop_gradients(ddp.parameters());
      ddp(torch::full({2}, group.rank() + 1.0)).backward();
      const float mean = (group.world_size() + 1);  // of 2 (rank + 1)
      EXPECT_TRUE(same_bits(ddp->a.grad(), torch::full({5, 3}, mean)));
      EXPECT_TRUE(same_bits(ddp->b.grad(), torch::full({7}, 2.0, at::kDouble)));
      EXPECT_TRUE(same_bits(ddp->c.grad(), torch::full({4, 4}, 3.0, at::kBFloat16)));
    }
    EXPECT_EQ(ddp.stats().buckets.size(), 3U);
  });
}

// Buckets store a gradient with the strides of its parameter (here channels_last).
TEST_P(Gradients, KeepTheStridesOfTheirParameters) {
  struct Conv : torch::nn::Module {
    Conv() : conv(register_module("conv", torch::nn::Conv2d(3, 4, 3))) {
      conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
    }
    at::Tensor forward(const at::Tensor& x) { return conv->forward(x); }
    torch::nn::Conv2d conv;
  };
  run([](ProcessGroup& group) {
    torch::manual_seed(1);
    auto alone = std::make_shared<Conv>();
    torch::manual_seed(1);
    DistributedDataParallel ddp(std::make_shared<Conv>(), default_group());
    for (int step = 0; step < 2; ++step) {
      drop_gradients(alone->parameters());
      const auto batch = torch::sin(torch::arange(12 * 3 * 6 * 6, at::kFloat) * 0.1).view({12, 3, 6, 6});
      alone->forward(batch).pow(2).mean().backward();
      ddp(share_of(batch, group)).pow(2).mean().backward();
      EXPECT_EQ(ddp->conv->weight.grad().strides(), ddp->conv->weight.strides());
      expect_close(gradients_of(ddp.parameters()), gradients_of(alone->parameters()));
      torch::optim::SGD(ddp.parameters(), 0.1).zero_grad();
    }
  });
}

// Sparse gradients travel alone.
struct Embeds : torch::nn::Module {
  explicit Embeds(bool sparse)
      : table(register_module("table",
                              torch::nn::Embedding(torch::nn::EmbeddingOptions(50, 6).sparse(sparse)))),
        head(register_module("head", torch::nn::Linear(6, 4))) {}
  at::Tensor forward(const at::Tensor& words) { return head->forward(table->forward(words).mean(1)); }
  torch::nn::Embedding table;
  torch::nn::Linear head;
};

TEST_P(Gradients, OfSparseEmbeddings) {
  run([](ProcessGroup& group) {
    torch::manual_seed(6);
    auto dense = std::make_shared<Embeds>(false);
    torch::manual_seed(6);
    DistributedDataParallel ddp(std::make_shared<Embeds>(true), default_group());
    for (int step = 0; step < 3; ++step) {
      drop_gradients(ddp.parameters());
      drop_gradients(dense->parameters());
      const auto words = at::remainder(torch::arange(24 * 3, at::kLong) * 7 + step * 5, 50).view({24, 3});
      dense->forward(words).pow(2).mean().backward();
      ddp(share_of(words, group)).pow(2).mean().backward();
      const auto& gradient = ddp->table->weight.grad();
      ASSERT_TRUE(gradient.is_sparse());
      EXPECT_TRUE(at::allclose(gradient.to_dense(), dense->table->weight.grad(), 1e-5, 1e-6));
      expect_same_on_all_ranks(group, gradients_of(ddp.parameters()));
      const torch::NoGradGuard no_grad;
      for (auto parameter : ddp.parameters()) parameter.add_(parameter.grad(), -0.1);
      for (auto parameter : dense->parameters()) parameter.add_(parameter.grad(), -0.1);
    }
  });
}

// A parameter shared by modules is averaged once; frozen and ignored ones are not averaged.
TEST_P(Gradients, SharedParametersCountOnceAndFrozenOnesNotAtAll) {
  struct Tied : torch::nn::Module {
    Tied()
        : in(register_module("in", torch::nn::Linear(8, 8))),
          out(register_module("out", in)),
          head(register_module("head", torch::nn::Linear(8, 4))),
          frozen(register_module("frozen", torch::nn::Linear(8, 8))) {
      for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
    }
    at::Tensor forward(const at::Tensor& x) {
      return head->forward(torch::tanh(out->forward(frozen->forward(in->forward(x)))));
    }
    torch::nn::Linear in, out, head, frozen;
  };
  run([](ProcessGroup& group) {
    torch::manual_seed(8);
    auto alone = std::make_shared<Tied>();
    torch::manual_seed(8);
    DistributedDataParallel ddp(std::make_shared<Tied>(), default_group(), {.ignore = {"head.bias"}});
    const auto batch = global_batch(24, 0);
    const auto mine = share_of(batch, group);
    loss_of(alone->forward(batch), batch).backward();
    loss_of(ddp(mine), mine).backward();
    EXPECT_TRUE(at::allclose(ddp->in->weight.grad(), alone->in->weight.grad(), 1e-5, 1e-6));
    EXPECT_FALSE(ddp->frozen->weight.grad().defined());
    EXPECT_EQ(ddp.parameters().size(), 2U + 2U + 2U);  // in, head, frozen: for the optimizer
    // An ignored parameter keeps this rank's own gradient.
    const auto all = group.all_gather(ddp->head->bias.grad().clone());
    EXPECT_FALSE(same_bits(all[0], all[1]));
  });
}

TEST_P(Gradients, FreezingAndUnfreezingBetweenSteps) {
  run([](ProcessGroup& group) {
    auto alone = make_net();
    auto net = make_net();
    for (auto& module : {alone, net}) module->third->bias.requires_grad_(false);
    DistributedDataParallel ddp(net, default_group());
    torch::optim::SGD optimizer(ddp.parameters(), 0.05), reference(alone->parameters(), 0.05);
    for (int step = 0; step < 6; ++step) {
      for (auto& module : {alone, net}) {
        module->second->weight.requires_grad_(step % 2 == 0);  // frozen in every other step
        module->third->bias.requires_grad_(step >= 3);         // frozen at construction
      }
      drop_gradients(ddp.parameters());
      drop_gradients(alone->parameters());
      const auto batch = global_batch(24, step);
      const auto mine = share_of(batch, group);
      loss_of(alone->forward(batch), batch).backward();
      loss_of(ddp(mine), mine).backward();
      const auto got = gradients_of(ddp.parameters()), want = gradients_of(alone->parameters());
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i].defined(), want[i].defined()) << "parameter " << i << " in step " << step;
        if (got[i].defined()) {
          EXPECT_TRUE(at::allclose(got[i], want[i], 1e-5, 1e-6)) << i;
        }
      }
      optimizer.step();
      reference.step();
      expect_same_on_all_ranks(group, ddp.parameters());
    }
  });
}

TEST_P(Gradients, OfAModuleThatGetsAnotherDtype) {
  run([](ProcessGroup& group) {
    for (const bool find_unused : {false, true}) {
      DistributedDataParallel ddp(make_net(), default_group(), {.find_unused_parameters = find_unused});
      const auto mine = share_of(global_batch(24, 0), group);
      loss_of(ddp(mine), mine).backward();
      drop_gradients(ddp.parameters());
      ddp->to(at::kDouble);
      const auto wide = mine.to(at::kDouble);
      for (int step = 0; step < 2; ++step) {
        loss_of(ddp(wide), wide).backward();
        expect_same_on_all_ranks(group, gradients_of(ddp.parameters()));
        EXPECT_EQ(ddp.stats().buckets.front().dtype, "Double");
      }
    }
  });
}

TEST_P(Gradients, WhoseDataIsReplaced) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net());
    for (int step = 0; step < 3; ++step) {
      const auto mine = share_of(global_batch(24, step), group);
      for (auto& gradient : gradients_of(ddp.parameters())) {
        if (gradient.defined()) gradient.set_data(torch::zeros_like(gradient));
      }
      loss_of(ddp(mine), mine).backward();
      expect_same_on_all_ranks(group, gradients_of(ddp.parameters()));
    }
  });
}

// The broadcast of the second forward writes to buffers that the graph of the first one has saved.
TEST_P(Gradients, OfTwoForwardsThroughABatchNorm) {
  run([](ProcessGroup& group) {
    torch::nn::Sequential layers(torch::nn::Linear(8, 4), torch::nn::BatchNorm1d(4));
    DistributedDataParallel ddp(layers);
    for (int step = 0; step < 2; ++step) {
      const auto mine = share_of(global_batch(24, step), group);
      (ddp(mine).pow(2).sum() + ddp(mine * 2).pow(3).sum()).backward();
      expect_same_on_all_ranks(group, gradients_of(ddp.parameters()));
    }
  });
}

// Second derivatives through the average are not supported; the error says so.
TEST_P(Gradients, WithAGraphOfTheirOwnAreAnError) {
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(make_net(), default_group());
    const auto mine = share_of(global_batch(24, 0), group);
    auto loss = loss_of(ddp(mine), mine);
    try {
      loss.backward({}, c10::nullopt, true);
      ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("create_graph"));
    }
    drop_gradients(ddp.parameters());  // breaks their reference cycle with the graph
  });
}

TEST_P(Gradients, InAWorldOfAnySizeAreTheAverage) {
  struct One : torch::nn::Module {
    One() : w(register_parameter("w", torch::zeros({1000}))) {}
    at::Tensor forward(const at::Tensor& x) { return (w * x).sum(); }
    at::Tensor w;
  };
  run([](ProcessGroup& group) {
    DistributedDataParallel ddp(std::make_shared<One>(), default_group());
    for (int step = 0; step < 20; ++step) {
      drop_gradients(ddp.parameters());
      ddp(torch::full({1000}, static_cast<float>(group.rank() + step))).backward();
      const float mean = step + (group.world_size() - 1) / 2.0F;
      EXPECT_TRUE(at::allclose(ddp->w.grad(), torch::full({1000}, mean)));
    }
  });
}

LOCKSTEP_DDP_WORLDS(Gradients, World("shm", 2), World("shm", 3), World("gloo", 2), World("hybrid", 3));

}  // namespace
}  // namespace lockstep::testing
