// LBFGS in a snapshot: a resumed run makes the same steps, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include <lockstep/error.h>

#include "snapshot/optimizer_state.h"
#include "support/message_of.h"

namespace lockstep::snapshot {
namespace {

using lockstep::testing::message_of;
using ::testing::HasSubstr;

// A regression problem that LBFGS does not solve in one step.
struct Curve {
  explicit Curve(const std::vector<std::string>& order = {"weight", "bias", "out"}) {
    torch::manual_seed(5);
    const NamedTensors all{
        {"weight", torch::randn({6, 3})}, {"bias", torch::randn({6})}, {"out", torch::randn({2, 6})}};
    for (const auto& name : order) {
      for (const auto& [known, value] : all) {
        if (known == name) names.emplace_back(name, value.clone().requires_grad_(true));
      }
    }
  }
  at::Tensor named(const std::string& name) const {
    for (const auto& [known, value] : names) {
      if (known == name) return value;
    }
    return {};
  }
  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> all;
    for (const auto& [name, value] : names) all.push_back(value);
    return all;
  }
  at::Tensor loss(int step) const {
    const auto x = torch::sin(torch::arange(60, at::kFloat) * 0.7 + step).view({20, 3});
    const auto hidden = torch::linear(x, named("weight"), named("bias")).tanh();
    return torch::mse_loss(torch::linear(hidden, named("out")), torch::cos(x.narrow(1, 0, 2) * 3));
  }
  void train(torch::optim::LBFGS& optimizer, int begin, int end) const {
    for (int step = begin; step < end; ++step) {
      optimizer.step([&] {
        optimizer.zero_grad();
        const auto value = loss(step);
        value.backward();
        return value;
      });
    }
  }
  NamedTensors names;
};

OptimizerState stored(const OptimizerState& state) {
  OptimizerState read{nlohmann::json::parse(state.about.dump()), {}};
  for (const auto& [name, tensor] : state.tensors) read.tensors.emplace_back(name, tensor.clone());
  return read;
}

void copy_parameters(const Curve& from, const Curve& to) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, value] : from.names) to.named(name).copy_(value);
}

using LbfgsOptions = torch::optim::LBFGSOptions;

LbfgsOptions line_search() {
  return LbfgsOptions(0.5).max_iter(4).history_size(3).line_search_fn("strong_wolfe");
}
LbfgsOptions fixed_steps() { return LbfgsOptions(0.1).max_iter(3).history_size(5).tolerance_change(1e-12); }

class Lbfgs : public ::testing::TestWithParam<LbfgsOptions (*)()> {};
INSTANTIATE_TEST_SUITE_P(LineSearches, Lbfgs, ::testing::Values(&line_search, &fixed_steps),
                         [](const auto& test) { return test.index == 0 ? "wolfe" : "plain"; });

// At step 0 there is no state, at 1 only a part, and at 4 the history is full.
TEST_P(Lbfgs, GoesOnBitForBit) {
  for (const int saved_at : {0, 1, 4}) {
    const Curve straight;
    torch::optim::LBFGS whole(straight.parameters(), GetParam()());
    straight.train(whole, 0, 8);

    const Curve before, after;
    torch::optim::LBFGS first(before.parameters(), GetParam()());
    before.train(first, 0, saved_at);
    const auto snapshot = stored(capture_optimizer(first, before.names));

    torch::optim::LBFGS second(after.parameters(), LbfgsOptions(7));
    after.train(second, 3, 5);  // this state must be replaced
    copy_parameters(before, after);
    prepare_optimizer(second, snapshot, after.names)();
    EXPECT_EQ(capture_optimizer(second, after.names).about, snapshot.about);
    after.train(second, saved_at, 8);
    for (const auto& [name, value] : straight.names) {
      EXPECT_TRUE(at::equal(value, after.named(name))) << name << " after resuming at " << saved_at;
    }
  }
}

TEST(LbfgsState, RefusesWhatDoesNotFitUnchanged) {
  const Curve curve;
  torch::optim::LBFGS optimizer(curve.parameters(), line_search());
  curve.train(optimizer, 0, 2);
  const auto snapshot = stored(capture_optimizer(optimizer, curve.names));

  const Curve reordered({"out", "bias", "weight"});
  torch::optim::LBFGS other(reordered.parameters(), line_search());
  EXPECT_THAT(message_of<SnapshotError>([&] { prepare_optimizer(other, snapshot, reordered.names); }),
              HasSubstr("the order of the parameters differs"));
  EXPECT_TRUE(other.state().empty());

  torch::optim::SGD sgd(curve.parameters(), 0.1);
  EXPECT_THAT(message_of<SnapshotError>([&] { prepare_optimizer(sgd, snapshot, curve.names); }),
              HasSubstr("it is that of LBFGS"));
  EXPECT_THROW(prepare_optimizer(optimizer, capture_optimizer(sgd, curve.names), curve.names), SnapshotError);

  auto shorter = snapshot;
  for (auto& [name, tensor] : shorter.tensors) {
    if (name.ends_with("/d")) tensor = tensor.narrow(0, 0, 3);
  }
  EXPECT_THAT(message_of<SnapshotError>([&] { prepare_optimizer(optimizer, shorter, curve.names); }),
              HasSubstr("the snapshot's d is Float [3]"));
  auto uneven = snapshot;
  for (auto& [name, tensor] : uneven.tensors) {
    if (name.ends_with("/ro")) tensor = tensor.narrow(0, 0, 1);
  }
  EXPECT_THAT(message_of<SnapshotError>([&] { prepare_optimizer(optimizer, uneven, curve.names); }),
              HasSubstr("different lengths"));
  auto hollow = snapshot;
  hollow.tensors.clear();
  EXPECT_THAT(message_of<SnapshotError>([&] { prepare_optimizer(optimizer, hollow, curve.names); }),
              HasSubstr("damaged"));
}

}  // namespace
}  // namespace lockstep::snapshot
