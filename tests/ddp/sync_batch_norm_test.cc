// Batch norms with shared statistics: the ranks must compute from their parts what one process computes from
// the whole batch. Parts may differ in size, be empty, or end early (Join).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>

#include <lockstep/lockstep.h>

#include "ddp/training.h"
#include "support/message_of.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using torch::indexing::Slice;
using Rows = std::vector<int64_t>;  // for each rank

constexpr double kTolerance = 1e-5;

void expect_close(const at::Tensor& actual, const at::Tensor& expected, const char* what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(at::allclose(actual, expected, kTolerance, kTolerance))
      << what << ": differs by up to " << (actual - expected).abs().max();
}

void expect_same_bits(const at::Tensor& actual, const at::Tensor& expected, const char* what) {
  EXPECT_TRUE(at::equal(actual, expected)) << what;
}

// This rank's rows of the whole batch.
at::Tensor part_of(const at::Tensor& whole, const Rows& rows, int rank) {
  const auto begin = std::accumulate(rows.begin(), rows.begin() + rank, int64_t{0});
  return whole.narrow(0, begin, rows.at(rank)).clone();
}

int64_t total(const Rows& rows) { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

// Even, uneven, and with no rows on one rank.
std::vector<Rows> splits(int world) {
  if (world == 1) return {{6}};
  if (world == 2) return {{4, 4}, {2, 5}, {6, 0}, {0, 3}};
  return {{3, 3, 3}, {2, 5, 3}, {4, 0, 2}};
}

// Compares a layer on the ranks' parts with its twin on the whole batch, for a few steps. Each rank's loss is
// a sum, so the gradients of the whole batch are the sums over the ranks.
template <class Norm>
void compare_layer(ProcessGroup& group, Norm norm, Norm twin, const Rows& rows,
                   const std::vector<int64_t>& sizes) {
  const int rank = group.rank();
  for (int step = 0; step < 3; ++step) {
    torch::manual_seed(100 + step);
    auto shape = sizes;
    shape.insert(shape.begin(), total(rows));
    // Far from zero, where a naive sum of squares loses precision.
    const auto whole = torch::randn(shape) * 3 + 20;
    const auto slope = torch::randn(shape);
    auto whole_in = whole.clone().requires_grad_();
    auto part_in = part_of(whole, rows, rank).requires_grad_();

    const auto whole_out = twin->forward(whole_in);
    (whole_out * slope).sum().backward();
    const auto part_out = norm->forward(part_in);
    ASSERT_TRUE(part_out.requires_grad());
    (part_out * part_of(slope, rows, rank)).sum().backward();

    expect_close(part_out, part_of(whole_out, rows, rank), "output");
    expect_close(part_in.grad(), part_of(whole_in.grad(), rows, rank), "input gradient");
    if (norm->weight.defined()) {
      auto of_weight = norm->weight.grad().clone(), of_bias = norm->bias.grad().clone();
      group.all_reduce(of_weight);
      group.all_reduce(of_bias);
      expect_close(of_weight, twin->weight.grad(), "weight gradient");
      expect_close(of_bias, twin->bias.grad(), "bias gradient");
    }
    if (norm->running_mean.defined()) {
      expect_close(norm->running_mean, twin->running_mean, "running mean");
      expect_close(norm->running_var, twin->running_var, "running variance");
      EXPECT_EQ(norm->num_batches_tracked.template item<int64_t>(), step + 1);
      for (const auto& theirs : group.all_gather(norm->running_var)) {
        expect_same_bits(theirs, norm->running_var, "running variance of another rank");
      }
    }
    norm->zero_grad();
    twin->zero_grad();
  }
}

template <class Norm>
void compare_layers(ProcessGroup& group, const torch::nn::BatchNormOptions& options,
                    const std::vector<int64_t>& sizes) {
  for (const auto& rows : splits(group.world_size())) {
    Norm norm(options), twin(options);
    if (norm->weight.defined()) {
      torch::manual_seed(1);
      const torch::NoGradGuard no_grad;
      for (auto& tensor : {norm->weight, norm->bias}) at::Tensor(tensor).copy_(torch::randn_like(tensor));
      twin->weight.copy_(norm->weight);
      twin->bias.copy_(norm->bias);
    }
    convert_sync_batchnorm(norm);
    compare_layer(group, norm, twin, rows, sizes);
  }
}

class SyncBatchNorm : public DdpTest {};

LOCKSTEP_DDP_WORLDS(SyncBatchNorm, World("gloo", 1), World("gloo", 2), World("gloo", 3), World("shm", 2),
                    World("shm", 3), World("hybrid", 3));

TEST_P(SyncBatchNorm, IsThatOfTheWholeBatch) {
  run([](ProcessGroup& group) {
    compare_layers<torch::nn::BatchNorm1d>(group, torch::nn::BatchNormOptions(5), {5});
    compare_layers<torch::nn::BatchNorm1d>(group, torch::nn::BatchNormOptions(5).eps(1e-3), {5, 7});
    compare_layers<torch::nn::BatchNorm2d>(group, torch::nn::BatchNormOptions(4).momentum(0.3), {4, 3, 5});
    compare_layers<torch::nn::BatchNorm3d>(group, torch::nn::BatchNormOptions(3), {3, 2, 3, 2});
  });
}

TEST_P(SyncBatchNorm, WithoutWeightsOrWithoutStatistics) {
  run([](ProcessGroup& group) {
    compare_layers<torch::nn::BatchNorm1d>(group, torch::nn::BatchNormOptions(5).affine(false), {5});
    compare_layers<torch::nn::BatchNorm2d>(group, torch::nn::BatchNormOptions(5).track_running_stats(false),
                                           {5, 2, 2});
    compare_layers<torch::nn::BatchNorm2d>(group, torch::nn::BatchNormOptions(5).momentum(c10::nullopt),
                                           {5, 2, 2});
  });
}

// ---- Inside models

// With members of fixed types, and a Sequential.
struct NormedNetImpl : torch::nn::Module {
  NormedNetImpl() {
    register_module("conv", conv);
    register_module("bn1", bn1);
    register_module("tail", tail);
  }
  at::Tensor forward(const at::Tensor& x) {
    return tail->forward(torch::relu(bn1->forward(conv->forward(x))).flatten(1));
  }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(2, 4, 3).bias(false)};
  torch::nn::BatchNorm2d bn1{4};
  torch::nn::Sequential tail{torch::nn::Linear(16, 6), torch::nn::BatchNorm1d(6), torch::nn::ReLU(),
                             torch::nn::Linear(6, 2)};
};
TORCH_MODULE(NormedNet);

NormedNet make_normed_net(int seed) {
  torch::manual_seed(seed);
  return {};
}

at::Tensor input_at(int step, int64_t rows) {
  torch::manual_seed(1000 + step);
  return torch::randn({rows, 2, 4, 4}) * 2 + 1;
}

void expect_same_model(const torch::nn::Module& actual, const torch::nn::Module& expected) {
  for (const auto& item : expected.named_parameters()) {
    expect_close(actual.named_parameters()[item.key()], item.value(), item.key().c_str());
  }
  for (const auto& item : expected.named_buffers()) {
    expect_close(actual.named_buffers()[item.key()], item.value(), item.key().c_str());
  }
}

TEST_P(SyncBatchNorm, UnderDdpTrainsAsTheWholeBatchDoes) {
  run([](ProcessGroup& group) {
    const int world = group.world_size();
    for (const auto& rows : splits(world)) {
      auto net = make_normed_net(group.rank()), twin = make_normed_net(0);
      convert_sync_batchnorm(net);
      DistributedDataParallel ddp(net);
      torch::optim::SGD optimizer(net->parameters(), 0.05), twins(twin->parameters(), 0.05);
      for (int step = 0; step < 5; ++step) {
        const auto whole = input_at(step, total(rows));
        optimizer.zero_grad();
        twins.zero_grad();
        // DDP averages over the ranks; the loss of the whole batch is the sum over them.
        (twin->forward(whole).square().sum() / total(rows)).backward();
        (ddp.forward(part_of(whole, rows, group.rank())).square().sum() * world / total(rows)).backward();
        optimizer.step();
        twins.step();
        expect_same_model(*net, *twin);
      }
      ddp.verify_replicas();
    }
  });
}

TEST_P(SyncBatchNorm, UnderJoinGoesOnWithThoseWhoHaveInput) {
  run([](ProcessGroup& group) {
    const int world = group.world_size(), rank = group.rank();
    // In the first epoch the last rank has the most batches, in the second the first rank, and in the third
    // rank 0 has none.
    const std::vector<std::vector<int>> epochs = {{1, 3, 4}, {4, 2, 2}, {0, 2, 5}};
    auto net = make_normed_net(7), twin = make_normed_net(7);
    convert_sync_batchnorm(net);
    DistributedDataParallel ddp(net);
    torch::optim::SGD optimizer(net->parameters(), 0.05), twins(twin->parameters(), 0.05);
    constexpr int64_t kRows = 3;
    for (size_t epoch = 0; epoch < epochs.size(); ++epoch) {
      const auto& batches = epochs[epoch];
      {
        Join join(ddp);
        for (int step = 0; step < batches[rank]; ++step) {
          const auto mine = input_at(step, kRows * world).narrow(0, rank * kRows, kRows);
          optimizer.zero_grad();
          ddp.forward(mine).square().mean().backward();
          optimizer.step();
        }
      }
      for (int step = 0; step < 5; ++step) {
        std::vector<at::Tensor> parts;
        for (int r = 0; r < world; ++r) {
          if (step < batches[r]) parts.push_back(input_at(step, kRows * world).narrow(0, r * kRows, kRows));
        }
        if (parts.empty()) break;
        twins.zero_grad();
        twin->forward(torch::cat(parts)).square().mean().backward();
        twins.step();
      }
      expect_same_model(*net, *twin);
      ddp.verify_replicas();
    }
    // Afterwards all ranks take part again.
    if (world > 1) compare_layers<torch::nn::BatchNorm1d>(group, torch::nn::BatchNormOptions(5), {5});
  });
}

TEST_P(SyncBatchNorm, IsUntouchedInEvaluation) {
  run([](ProcessGroup& group) {
    auto net = make_normed_net(3), twin = make_normed_net(3);
    convert_sync_batchnorm(net);
    net->eval();
    twin->eval();
    // Each rank has other data and makes another number of calls: nothing may be exchanged.
    for (int i = 0; i <= group.rank(); ++i) {
      auto input = input_at(group.rank(), 2 + group.rank()).requires_grad_();
      auto twins = input.detach().clone().requires_grad_();
      const auto output = net->forward(input), expected = twin->forward(twins);
      expect_same_bits(output, expected, "output");
      output.sum().backward();
      expected.sum().backward();
      expect_same_bits(input.grad(), twins.grad(), "input gradient");
    }
    // Without running statistics, evaluation also normalises by the batch: that of this rank.
    torch::nn::BatchNorm1d plain(torch::nn::BatchNormOptions(4).track_running_stats(false));
    convert_sync_batchnorm(plain);
    plain->eval();
    const auto input = torch::randn({3 + group.rank(), 4});
    expect_same_bits(plain->forward(input), torch::batch_norm(input, {}, {}, {}, {}, true, 0.1, 1e-5, false),
                     "eval");
  });
}

TEST_P(SyncBatchNorm, OthersAreUntouched) {
  run([](ProcessGroup& group) {
    auto converted = make_normed_net(3);
    auto before = make_normed_net(4), after = make_normed_net(4);
    const auto input = input_at(group.rank(), 2 + group.rank());
    const auto expected = before->forward(input);
    convert_sync_batchnorm(converted);
    expect_same_bits(after->forward(input), expected, "a layer that was not converted");
    // Nor is a clone synchronised.
    const auto features = torch::randn({3 + group.rank(), 6});
    const auto norm = converted->tail->children().at(1);
    const auto clone = std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(norm->clone());
    expect_same_bits(clone->forward(features), torch::nn::BatchNorm1d(6)->forward(features), "a clone");
  });
}

// ---- Corners

TEST_P(SyncBatchNorm, WithoutGradients) {
  run([](ProcessGroup& group) {
    const Rows rows = splits(group.world_size()).back();
    torch::nn::BatchNorm1d norm(4), twin(4);
    convert_sync_batchnorm(norm);
    const auto whole = torch::arange(total(rows) * 4, at::kFloat).view({-1, 4}).square();
    const auto part = part_of(whole, rows, group.rank());
    {
      const torch::NoGradGuard no_grad;
      expect_close(norm->forward(part), part_of(twin->forward(whole), rows, group.rank()), "output");
    }
    {
      const c10::InferenceMode inference;
      expect_close(norm->forward(part), part_of(twin->forward(whole), rows, group.rank()), "output");
    }
    expect_close(norm->running_var, twin->running_var, "running variance");
    // Frozen weights, and an input that needs no gradient.
    norm->weight.requires_grad_(false);
    norm->bias.requires_grad_(false);
    EXPECT_FALSE(norm->forward(part).requires_grad());
    norm->bias.requires_grad_(true);
    norm->forward(part).sum().backward();
    EXPECT_FALSE(norm->weight.grad().defined());
    expect_close(norm->bias.grad(), torch::full({4}, double(part.size(0))), "bias gradient");
  });
}

TEST_P(SyncBatchNorm, OtherLayoutsAndTypes) {
  run([](ProcessGroup& group) {
    const Rows rows = splits(group.world_size()).front();
    const int rank = group.rank();
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
        torch::manual_seed(5);
        const auto whole = torch::randn({total(rows), 4, 3, 3}).to(dtype);
        torch::nn::BatchNorm2d norm(4), twin(4);
        // Inputs of 16 bits with parameters of 32 bits, as under autocast.
        if (dtype == at::kDouble) norm->to(dtype), twin->to(dtype);
        convert_sync_batchnorm(norm);
        auto whole_in = whole.clone(format).requires_grad_();
        auto part_in = part_of(whole, rows, rank).contiguous(format).requires_grad_();
        const auto whole_out = twin->forward(whole_in), part_out = norm->forward(part_in);
        EXPECT_EQ(part_out.scalar_type(), whole_out.scalar_type());
        EXPECT_TRUE(part_out.is_contiguous(format));
        whole_out.square().mul(whole_out).sum().backward();
        part_out.square().mul(part_out).sum().backward();
        const double tolerance = dtype == at::kBFloat16 ? 0.1 : kTolerance;
        EXPECT_TRUE(at::allclose(part_out, part_of(whole_out, rows, rank), tolerance, tolerance)) << dtype;
        EXPECT_TRUE(at::allclose(part_in.grad(), part_of(whole_in.grad(), rows, rank), tolerance, tolerance))
            << dtype << part_in.grad() - part_of(whole_in.grad(), rows, rank);
      }
    }
    // Every other column: strides that match no memory format.
    torch::manual_seed(6);
    const auto whole = torch::randn({total(rows), 4, 6});
    torch::nn::BatchNorm1d norm(4), twin(4);
    convert_sync_batchnorm(norm);
    const auto even = [](const at::Tensor& x) { return x.index({Slice(), Slice(), Slice(0, 6, 2)}); };
    expect_close(norm->forward(even(part_of(whole, rows, rank))),
                 part_of(twin->forward(even(whole)), rows, rank), "output");
  });
}

TEST_P(SyncBatchNorm, NothingAnywhere) {
  run([](ProcessGroup&) {
    torch::nn::BatchNorm2d norm(4);
    convert_sync_batchnorm(norm);
    auto input = torch::empty({0, 4, 2, 2}).requires_grad_();
    const auto output = norm->forward(input);
    EXPECT_EQ(output.sizes(), input.sizes());
    output.sum().backward();
    EXPECT_EQ(input.grad().sizes(), input.sizes());
    expect_same_bits(norm->running_mean, torch::zeros({4}), "running mean");
    expect_same_bits(norm->running_var, torch::ones({4}), "running variance");
  });
}

TEST_P(SyncBatchNorm, ALayerThatRunsTwice) {
  run([](ProcessGroup& group) {
    const Rows rows = splits(group.world_size()).back();
    torch::nn::BatchNorm1d norm(4), twin(4);
    convert_sync_batchnorm(norm);
    const auto whole = torch::arange(total(rows) * 4, at::kFloat).view({-1, 4}).square();
    auto whole_in = whole.clone().requires_grad_(),
         part_in = part_of(whole, rows, group.rank()).requires_grad_();
    const auto twice = [](auto& layer, const at::Tensor& x) {
      return layer->forward(layer->forward(x).exp()).square().mul(x).sum();
    };
    twice(twin, whole_in).backward();
    twice(norm, part_in).backward();
    expect_close(part_in.grad(), part_of(whole_in.grad(), rows, group.rank()), "input gradient");
  });
}

TEST_P(SyncBatchNorm, ConvertedAgain) {
  run([](ProcessGroup& group) {
    torch::nn::BatchNorm1d norm(4), twin(4);
    convert_sync_batchnorm(norm);
    convert_sync_batchnorm(norm);
    const auto whole = torch::arange(12 * 4, at::kFloat).view({-1, 4}).square();
    const Rows rows(group.world_size(), 12 / group.world_size());
    expect_close(norm->forward(part_of(whole, rows, group.rank())),
                 part_of(twin->forward(whole), rows, group.rank()), "output");
    // Converting with a group of one rank undoes it.
    std::shared_ptr<ProcessGroup> alone;
    for (int rank = 0; rank < group.world_size(); ++rank) {
      if (auto made = group.new_group({rank})) alone = made;
    }
    convert_sync_batchnorm(norm, alone);
    const auto part = part_of(whole, rows, group.rank());
    expect_same_bits(norm->forward(part), torch::nn::BatchNorm1d(4)->forward(part), "output");
  });
}

TEST_P(SyncBatchNorm, NewLayersAreNotTakenForOldOnes) {
  run([](ProcessGroup& group) {
    // New layers may reuse addresses of old ones, but must not inherit their state.
    const auto input = torch::randn({3 + group.rank(), 4});
    for (int i = 0; i < 50; ++i) {
      torch::nn::BatchNorm1d gone(4);
      if (i % 10 == 0) convert_sync_batchnorm(gone);
      gone = nullptr;
      torch::nn::BatchNorm1d plain(4);
      expect_same_bits(plain->forward(input),
                       torch::batch_norm(input, {}, {}, {}, {}, true, 0.1, 1e-5, false), "a new layer");
    }
  });
}

TEST_P(SyncBatchNorm, WhatCannotBe) {
  run([](ProcessGroup& group) {
    convert_sync_batchnorm(torch::nn::Sequential(torch::nn::Linear(2, 2)));
    EXPECT_THROW(convert_sync_batchnorm(std::shared_ptr<torch::nn::Module>()), UsageError);
    EXPECT_THROW(convert_sync_batchnorm(torch::nn::Linear(2, 2), nullptr), UsageError);
    const torch::nn::Sequential nameless(
        torch::nn::Linear(2, 2),
        torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(2).affine(false).track_running_stats(false)));
    EXPECT_THAT(message_of<UsageError>([&] { convert_sync_batchnorm(nameless); }), HasSubstr("'1'"));

    if (group.world_size() == 1) return;
    torch::nn::BatchNorm1d norm(4);
    convert_sync_batchnorm(norm);
    // One value per channel over all ranks. The layer would reject the input before, so call batch_norm
    // directly.
    const auto input = group.rank() == 0 ? torch::ones({1, 4}) : torch::ones({0, 4});
    EXPECT_THAT(message_of<c10::Error>([&] {
                  torch::batch_norm(input, norm->weight, norm->bias, norm->running_mean, norm->running_var,
                                    true, 0.1, 1e-5, false);
                }),
                HasSubstr("Expected more than 1 value per channel"));
    auto needs = torch::randn({3, 4}).requires_grad_();
    const auto output = norm->forward(needs).square().sum();
    EXPECT_THROW(torch::autograd::grad({output}, {needs}, {}, true, true), UsageError);

    const torch::nn::BatchNorm1d differs(4 + group.rank());
    EXPECT_THAT(message_of<MismatchError>([&] { convert_sync_batchnorm(differs); }), HasSubstr("5 channels"));
  });
}

}  // namespace
}  // namespace lockstep::testing
