// The state of optimizers by parameter name: a run continues in a new optimizer, bit for bit.
#include <bit>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

#include <torch/torch.h>

#include <lockstep/error.h>

#include "snapshot/numbers.h"
#include "snapshot/optimizer_state.h"
#include "support/message_of.h"

namespace lockstep::snapshot {
namespace {

using lockstep::testing::message_of;
using nlohmann::json;
using ::testing::HasSubstr;

// The parameters are the same, whatever the order of registration. 'idle' never gets a gradient.
struct Net : torch::nn::Module {
  explicit Net(bool reversed = false) {
    torch::manual_seed(3);
    std::vector<std::pair<std::string, at::Tensor>> all = {{"conv", torch::randn({4, 3, 2, 2})},
                                                           {"weight", torch::randn({5, 4})},
                                                           {"bias", torch::randn({5})},
                                                           {"scale", torch::randn({})},
                                                           {"idle", torch::randn({2})}};
    all[0].second = all[0].second.contiguous(at::MemoryFormat::ChannelsLast);
    if (reversed) std::reverse(all.begin(), all.end());
    for (const auto& [name, value] : all) register_parameter(name, value);
  }
  at::Tensor operator[](const std::string& name) { return named_parameters()[name]; }
  at::Tensor loss(int step) {
    auto& self = *this;
    const auto x = torch::sin(torch::arange(2 * 3 * 4 * 4, at::kFloat) * 0.3 + step).view({2, 3, 4, 4});
    const auto hidden = torch::conv2d(x, self["conv"]).tanh().mean({2, 3});
    return (torch::linear(hidden, self["weight"], self["bias"]) * self["scale"]).pow(2).sum();
  }
  NamedTensors names() {
    NamedTensors all;
    for (const auto& item : named_parameters()) all.emplace_back(item.key(), item.value());
    return all;
  }
};

void train(Net& net, torch::optim::Optimizer& optimizer, int begin, int end) {
  for (int step = begin; step < end; ++step) {
    optimizer.zero_grad();
    net.loss(step).backward();
    optimizer.step();
  }
}

void expect_same_parameters(Net& a, Net& b) {
  for (const auto& item : a.named_parameters()) {
    EXPECT_TRUE(at::equal(item.value(), b[item.key()])) << item.key();
  }
}

void restore_optimizer(torch::optim::Optimizer& optimizer, const OptimizerState& state,
                       const NamedTensors& names) {
  prepare_optimizer(optimizer, state, names)();
}

// The state as it would be read from a file.
OptimizerState through_file(const OptimizerState& state) {
  OptimizerState read{json::parse(state.about.dump()), {}};
  for (const auto& [name, tensor] : state.tensors) read.tensors.emplace_back(name, tensor.clone());
  return read;
}

void expect_same_state(const OptimizerState& a, const OptimizerState& b) {
  EXPECT_EQ(a.about, b.about);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    EXPECT_EQ(a.tensors[i].first, b.tensors[i].first);
    EXPECT_TRUE(at::equal(a.tensors[i].second, b.tensors[i].second)) << a.tensors[i].first;
  }
}

// Two groups with different options; the parameters are in the order of the module.
std::vector<torch::optim::OptimizerParamGroup> groups_of(
    Net& net, std::unique_ptr<torch::optim::OptimizerOptions> first = nullptr,
    std::unique_ptr<torch::optim::OptimizerOptions> second = nullptr) {
  std::vector<at::Tensor> one, two;
  for (const auto& item : net.named_parameters()) {
    (item.key() == "bias" || item.key() == "conv" ? one : two).push_back(item.value());
  }
  return {{one, std::move(first)}, {two, std::move(second)}};
}

struct Maker {
  std::string name;
  // With the options of the saved run, and with other options, which the snapshot must replace.
  std::function<std::unique_ptr<torch::optim::Optimizer>(Net&)> make, make_other;
};
void PrintTo(const Maker& maker, std::ostream* out) { *out << maker.name; }

template <class Optimizer, class Options>
Maker maker(const std::string& name, const Options& first, const Options& second) {
  return {name,
          [=](Net& net) {
            return std::make_unique<Optimizer>(
                groups_of(net, std::make_unique<Options>(first), std::make_unique<Options>(second)),
                Options(0.5));
          },
          [](Net& net) { return std::make_unique<Optimizer>(groups_of(net), Options(0.25)); }};
}

std::vector<Maker> makers() {
  using namespace torch::optim;
  return {maker<SGD>("sgd", SGDOptions(0.01), SGDOptions(0.02).weight_decay(0.1)),
          maker<SGD>("sgd_momentum", SGDOptions(0.01).momentum(0.9).nesterov(true),
                     SGDOptions(0.02).momentum(0.7).dampening(0.1).weight_decay(0.01)),
          maker<Adam>("adam", AdamOptions(0.01).betas({0.8, 0.95}).weight_decay(0.1),
                      AdamOptions(0.03).eps(1e-5)),
          maker<Adam>("adam_amsgrad", AdamOptions(0.01).amsgrad(true), AdamOptions(0.03)),
          maker<AdamW>("adamw", AdamWOptions(0.01).weight_decay(0.3),
                       AdamWOptions(0.03).amsgrad(true).betas({0.5, 0.6})),
          maker<RMSprop>("rmsprop", RMSpropOptions(0.001).momentum(0.9).centered(true),
                         RMSpropOptions(0.002).alpha(0.9).weight_decay(0.1).eps(1e-6)),
          maker<Adagrad>("adagrad", AdagradOptions(0.1).lr_decay(0.01).weight_decay(0.1),
                         AdagradOptions(0.2).initial_accumulator_value(0.5).eps(1e-6))};
}

class EveryOptimizer : public ::testing::TestWithParam<Maker> {};
INSTANTIATE_TEST_SUITE_P(Kinds, EveryOptimizer, ::testing::ValuesIn(makers()),
                         [](const auto& test) { return test.param.name; });

TEST_P(EveryOptimizer, GoesOnBitForBitWithParametersInAnotherOrder) {
  Net straight;
  const auto whole = GetParam().make(straight);
  train(straight, *whole, 0, 5);
  whole->param_groups()[1].options().set_lr(0.0123);  // as a scheduler would
  train(straight, *whole, 5, 10);

  Net before, after(/*reversed=*/true);
  OptimizerState snapshot;
  {
    const auto first = GetParam().make(before);
    train(before, *first, 0, 5);
    first->param_groups()[1].options().set_lr(0.0123);
    snapshot = through_file(capture_optimizer(*first, before.names()));
  }
  const auto second = GetParam().make_other(after);
  train(after, *second, 7, 9);  // this state must be replaced
  {
    const at::NoGradGuard no_grad;
    for (const auto& [name, value] : before.names()) after[name].copy_(value);
  }
  restore_optimizer(*second, snapshot, after.names());
  train(after, *second, 5, 10);
  expect_same_parameters(straight, after);
}

TEST_P(EveryOptimizer, CapturesAfterRestoringWhatWasRestored) {
  Net net, other;
  const auto optimizer = GetParam().make(net), restored = GetParam().make_other(other);
  train(net, *optimizer, 0, 3);
  const auto snapshot = through_file(capture_optimizer(*optimizer, net.names()));
  restore_optimizer(*restored, snapshot, other.names());
  expect_same_state(capture_optimizer(*restored, other.names()), snapshot);
}

TEST_P(EveryOptimizer, TakesAwayStateThatTheSnapshotLacks) {
  Net net, other;
  const auto optimizer = GetParam().make(net), trained = GetParam().make(other);
  const auto fresh = through_file(capture_optimizer(*optimizer, net.names()));
  train(other, *trained, 0, 3);
  restore_optimizer(*trained, fresh, other.names());
  expect_same_state(capture_optimizer(*trained, other.names()), fresh);
  EXPECT_EQ(optimizer->state().size(), trained->state().size());
}

TEST_P(EveryOptimizer, RefusesTheStateOfEveryOtherKindUnchanged) {
  for (const auto& theirs : makers()) {
    Net net, other;
    const auto mine = GetParam().make(net), foreign = theirs.make(other);
    train(net, *mine, 0, 2);
    train(other, *foreign, 0, 2);
    const auto before = through_file(capture_optimizer(*mine, net.names()));
    const auto snapshot = capture_optimizer(*foreign, other.names());
    if (snapshot.about["kind"] == before.about["kind"]) continue;
    const auto message = message_of<SnapshotError>([&] { restore_optimizer(*mine, snapshot, net.names()); });
    EXPECT_THAT(message, HasSubstr("this " + before.about["kind"].get<std::string>() + " optimizer"));
    EXPECT_THAT(message, HasSubstr("that of " + snapshot.about["kind"].get<std::string>()));
    expect_same_state(capture_optimizer(*mine, net.names()), before);
  }
}

TEST(Optimizer, NamesEachTensorAfterItsParameterAndSlot) {
  Net net;
  torch::optim::Adam adam(net.parameters(), 0.01);
  train(net, adam, 0, 4);
  const auto state = capture_optimizer(adam, net.names());
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state.tensors) names.push_back(name);
  EXPECT_THAT(names,
              ::testing::ElementsAre("conv/exp_avg", "conv/exp_avg_sq", "weight/exp_avg", "weight/exp_avg_sq",
                                     "bias/exp_avg", "bias/exp_avg_sq", "scale/exp_avg", "scale/exp_avg_sq"));
  EXPECT_EQ(state.about["steps"], json({{"conv", 4}, {"weight", 4}, {"bias", 4}, {"scale", 4}}));
  EXPECT_EQ(state.about["groups"][0]["parameters"], json({"conv", "weight", "bias", "scale", "idle"}));
}

TEST(Optimizer, KeepsEveryBitOfItsOptions) {
  const std::vector<double> odd = {std::numeric_limits<double>::infinity(),
                                   -std::numeric_limits<double>::infinity(),
                                   -0.0,
                                   std::numeric_limits<double>::denorm_min(),
                                   std::bit_cast<double>(uint64_t{0x7ff8000000000abc}),
                                   std::bit_cast<double>(uint64_t{0xfff8000000000001}),
                                   0.1 + 0.2,
                                   std::numeric_limits<double>::max()};
  for (const double value : odd) {
    Net net, other;
    torch::optim::Adam adam(net.parameters(), 0.01), restored(other.parameters(), 1);
    static_cast<torch::optim::AdamOptions&>(adam.param_groups()[0].options()).eps(value);
    restore_optimizer(restored, through_file(capture_optimizer(adam, net.names())), other.names());
    const auto& options = static_cast<const torch::optim::AdamOptions&>(restored.param_groups()[0].options());
    EXPECT_EQ(std::bit_cast<uint64_t>(options.eps()), std::bit_cast<uint64_t>(value)) << value;
    EXPECT_EQ(options.lr(), 0.01);
  }
}

TEST(Optimizer, StoresNumbersThatJsonLacksByName) {
  const auto stored = [](double value) { return number_to_json(value).dump(); };
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(stored(infinity), R"({"double":"inf"})");
  EXPECT_EQ(stored(-infinity), R"({"double":"-inf"})");
  EXPECT_EQ(stored(std::bit_cast<double>(uint64_t{0xfff8000000000000})), R"({"double":"-nan"})");
  EXPECT_EQ(stored(std::bit_cast<double>(uint64_t{0x7ff8000000000abc})),
            R"({"double":"0x7ff8000000000abc"})");
  EXPECT_EQ(stored(0.5), "0.5");
  EXPECT_EQ(readable(number_to_json(infinity)), "inf");
  EXPECT_EQ(readable({{"double", "\033[2J"}}), R"({"double":"\u001b[2J"})");
  EXPECT_EQ(number_from_json({{"double", "0x"}}), std::nullopt);
  EXPECT_EQ(number_from_json(nullptr), std::nullopt);
}

// Older builds stored such a number as a bare text of its bits.
TEST(Optimizer, ReadsNumbersOfOlderFiles) {
  Net net, other;
  torch::optim::Adam adam(net.parameters(), 0.01), restored(other.parameters(), 1);
  auto state = capture_optimizer(adam, net.names());
  state.about["groups"][0]["options"]["eps"] = "0x7ff0000000000000";
  restore_optimizer(restored, through_file(state), other.names());
  const auto& options = static_cast<const torch::optim::AdamOptions&>(restored.param_groups()[0].options());
  EXPECT_EQ(options.eps(), std::numeric_limits<double>::infinity());
}

TEST(Optimizer, OwnsWhatWasRestored) {
  Net net, other;
  torch::optim::SGD sgd(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD restored(other.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  train(net, sgd, 0, 2);
  const auto state = capture_optimizer(sgd, net.names());
  restore_optimizer(restored, state, other.names());
  const auto before = through_file(capture_optimizer(restored, other.names()));
  train(net, sgd, 2, 4);  // changes the captured tensors, which still belong to the optimizer
  EXPECT_FALSE(at::equal(state.tensors[0].second, before.tensors[0].second));
  expect_same_state(capture_optimizer(restored, other.names()), before);
}

TEST(Optimizer, LaysOutRestoredTensorsAsTheParameters) {
  Net net, other;
  torch::optim::Adam adam(net.parameters(), 0.01), restored(other.parameters(), 0.01);
  train(net, adam, 0, 1);
  auto state = through_file(capture_optimizer(adam, net.names()));
  for (auto& [name, tensor] : state.tensors) tensor = tensor.contiguous();
  restore_optimizer(restored, state, other.names());
  const auto [name, average] = capture_optimizer(restored, other.names()).tensors[0];
  EXPECT_EQ(name, "conv/exp_avg");
  EXPECT_EQ(average.strides(), other["conv"].strides());
  EXPECT_FALSE(average.requires_grad());
}

TEST(Optimizer, KeepsAReferenceToOptionsValid) {
  Net net, other;
  torch::optim::SGD sgd(net.parameters(), 0.125), restored(other.parameters(), 1);
  const auto& options = restored.param_groups()[0].options();
  restore_optimizer(restored, capture_optimizer(sgd, net.names()), other.names());
  EXPECT_EQ(options.get_lr(), 0.125);
}

TEST(Optimizer, FindsASharedParameterUnderAnyOfItsNames) {
  Net net, other;
  torch::optim::Adam adam(net.parameters(), 0.01), restored(other.parameters(), 0.5);
  train(net, adam, 0, 2);
  auto names = net.names(), others = other.names();
  names.insert(names.begin(), {"head.weight", net["weight"]});
  others.emplace_back("head.weight", other["weight"]);
  const auto state = through_file(capture_optimizer(adam, names));
  EXPECT_TRUE(state.about["steps"].contains("head.weight"));
  restore_optimizer(restored, state, others);
  EXPECT_TRUE(capture_optimizer(restored, others).about["steps"].contains("weight"));
}

TEST(Optimizer, TakesNamesWithSlashes) {
  auto parameter = torch::ones({2}, at::requires_grad()), other = torch::ones({2}, at::requires_grad());
  torch::optim::Adam adam(std::vector<at::Tensor>{parameter}), restored(std::vector<at::Tensor>{other});
  parameter.sum().backward();
  adam.step();
  const auto state = capture_optimizer(adam, {{"a/b/step", parameter}});
  restore_optimizer(restored, state, {{"a/b/step", other}});
  expect_same_state(capture_optimizer(restored, {{"a/b/step", other}}), state);
}

// Errors

struct Signs : torch::optim::Optimizer {
  using Optimizer::Optimizer;
  at::Tensor step(LossClosure = nullptr) override { return {}; }
};

TEST(Optimizer, NamesAnOptimizerItDoesNotKnow) {
  Net net;
  Signs signs(net.parameters(), std::make_unique<torch::optim::SGDOptions>(0.1));
  const auto message = message_of<UsageError>([&] { capture_optimizer(signs, net.names()); });
  EXPECT_THAT(message, HasSubstr("Signs"));
  EXPECT_THAT(message, HasSubstr("hint: use torch::optim::SGD"));
  EXPECT_THROW(restore_optimizer(signs, {}, net.names()), UsageError);
}

struct Lookahead : torch::optim::SGD {
  using SGD::SGD;
  at::Tensor slow;  // a snapshot would lose it
};

TEST(Optimizer, RefusesOneDerivedFromAKnownOne) {
  Net net;
  Lookahead optimizer(net.parameters(), 0.1);
  EXPECT_THAT(message_of<UsageError>([&] { capture_optimizer(optimizer, net.names()); }),
              HasSubstr("Lookahead"));
}

TEST(Optimizer, NamesAParameterThatIsInNoModule) {
  Net net;
  auto groups = groups_of(net);
  groups[1].params().push_back(torch::zeros({7, 9}, at::requires_grad()));
  torch::optim::SGD sgd(groups, 0.1);
  for (const auto& action : std::vector<std::function<void()>>{
           [&] { capture_optimizer(sgd, net.names()); },
           [&] {
             Net other;
             torch::optim::SGD known(groups_of(other), 0.1);
             restore_optimizer(sgd, capture_optimizer(known, other.names()), net.names());
           }}) {
    EXPECT_THAT(message_of<UsageError>(action), HasSubstr("group 1, Float [7, 9]"));
  }
}

TEST(Optimizer, RefusesTwoParametersOfOneName) {
  Net net;
  torch::optim::SGD sgd(net.parameters(), 0.1);
  auto names = net.names();
  names.emplace_back("bias", torch::zeros({5}));
  EXPECT_THAT(message_of<UsageError>([&] { capture_optimizer(sgd, names); }), HasSubstr("'bias'"));
}

TEST(Optimizer, RefusesMomentumOfSparseGradients) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(10, 3).sparse(true));
  torch::optim::SGD sgd(table->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  table->forward(torch::tensor({1, 2})).sum().backward();
  sgd.step();
  EXPECT_THAT(message_of<UsageError>([&] {
                capture_optimizer(sgd, {{"table", table->weight}});
              }),
              HasSubstr("momentum_buffer of 'table' is sparse"));
}

struct Wrong {
  std::string name;
  std::function<void(OptimizerState&)> spoil;
  std::vector<std::string> says;
};
void PrintTo(const Wrong& wrong, std::ostream* out) { *out << wrong.name; }

at::Tensor& tensor_in(OptimizerState& state, const std::string& name) {
  for (auto& [known, tensor] : state.tensors) {
    if (known == name) return tensor;
  }
  throw std::out_of_range(name);
}

void rename(OptimizerState& state, const std::string& from, const std::string& to) {
  for (auto& [known, tensor] : state.tensors) {
    if (known == from) known = to;
  }
}

std::vector<Wrong> wrong_states() {
  return {
      {"group_count", [](OptimizerState& s) { s.about["groups"].erase(1); }, {"1 parameter groups", "has 2"}},
      {"missing_parameter",
       [](OptimizerState& s) { s.about["groups"][1]["parameters"].erase(0); },
       {"in group 1", "only the optimizer has 'weight'"}},
      {"extra_parameter",
       [](OptimizerState& s) { s.about["groups"][0]["parameters"].push_back("gone"); },
       {"in group 0", "3 parameters were saved", "only the snapshot has 'gone'"}},
      {"many_differences",
       [](OptimizerState& s) {
         s.about["groups"][0]["parameters"] = {"a", "b", "c", "d", "e"};
       },
       {"'a', 'b', 'c' and 2 more", "'bias', 'conv'"}},
      {"groups_exchanged",
       [](OptimizerState& s) { std::swap(s.about["groups"][0], s.about["groups"][1]); },
       {"group 0"}},
      {"twice_in_group",
       [](OptimizerState& s) { s.about["groups"][0]["parameters"].push_back("bias"); },
       {"only the snapshot has 'bias'"}},
      {"shape",
       [](OptimizerState& s) { tensor_in(s, "bias/exp_avg") = torch::zeros({6}); },
       {"exp_avg of 'bias' is Float [6]", "parameter is Float [5]"}},
      {"dtype",
       [](OptimizerState& s) { tensor_in(s, "bias/exp_avg") = torch::zeros({5}, at::kDouble); },
       {"Double [5]", "Float [5]"}},
      {"undefined_tensor",
       [](OptimizerState& s) { tensor_in(s, "bias/exp_avg") = at::Tensor(); },
       {"'bias/exp_avg'"}},
      {"missing_slot",
       [](OptimizerState& s) { rename(s, "bias/exp_avg_sq", "scale/other"); },
       {"'bias' has no exp_avg_sq"}},
      {"slot_that_options_need",
       [](OptimizerState& s) { s.about["groups"][0]["options"]["amsgrad"] = true; },
       {"has no max_exp_avg_sq"}},
      {"unknown_slot",
       [](OptimizerState& s) { s.tensors.emplace_back("bias/momentum_buffer", torch::zeros({5})); },
       {"'bias' has momentum_buffer"}},
      {"slot_of_stranger",
       [](OptimizerState& s) { s.tensors.emplace_back("gone/exp_avg", torch::zeros({5})); },
       {"'gone' has state but is in no group"}},
      {"no_slot",
       [](OptimizerState& s) { s.tensors.emplace_back("exp_avg", torch::zeros({5})); },
       {"'exp_avg'"}},
      {"slot_twice", [](OptimizerState& s) { s.tensors.push_back(s.tensors.front()); }, {"twice"}},
      {"missing_step",
       [](OptimizerState& s) { s.about["steps"].erase("bias"); },
       {"'bias' has no step counter"}},
      {"negative_step", [](OptimizerState& s) { s.about["steps"]["bias"] = -1; }, {"step of 'bias' is -1"}},
      {"huge_step", [](OptimizerState& s) { s.about["steps"]["bias"] = ~uint64_t{0}; }, {"step of 'bias'"}},
      {"step_of_text",
       [](OptimizerState& s) { s.about["steps"]["bias"] = "3"; },
       {"step of 'bias' is \"3\""}},
      {"missing_option",
       [](OptimizerState& s) { s.about["groups"][1]["options"].erase("eps"); },
       {"group 1", "'eps'"}},
      {"unknown_option",
       [](OptimizerState& s) { s.about["groups"][1]["options"]["fused"] = true; },
       {"fused"}},
      {"option_of_text",
       [](OptimizerState& s) { s.about["groups"][1]["options"]["eps"] = "small"; },
       {R"("small")"}},
      {"option_of_half_bits",
       [](OptimizerState& s) { s.about["groups"][1]["options"]["eps"] = "0x7g"; },
       {R"("0x7g")"}},
      {"option_of_unknown_number",
       [](OptimizerState& s) {
         s.about["groups"][1]["options"]["eps"] = {{"double", "small"}};
       },
       {R"({"double":"small"})"}},
      {"option_of_another_type",
       [](OptimizerState& s) { s.about["groups"][1]["options"]["amsgrad"] = 1.5; },
       {"damaged"}},
      {"null", [](OptimizerState& s) { s.about = nullptr; }, {"damaged"}},
      {"empty", [](OptimizerState& s) { s.about = json::object(); }, {"damaged"}},
      {"groups_of_text", [](OptimizerState& s) { s.about["groups"] = "two"; }, {"1 parameter groups"}},
      {"group_of_numbers",
       [](OptimizerState& s) {
         s.about["groups"] = {1, 2};
       },
       {"damaged"}},
      {"names_of_numbers",
       [](OptimizerState& s) {
         s.about["groups"][0]["parameters"] = {1, 2};
       },
       {"damaged"}},
      {"steps_of_list",
       [](OptimizerState& s) {
         s.about["steps"] = {1, 2};
       },
       {"has no step counter"}},
  };
}

class WrongState : public ::testing::TestWithParam<Wrong> {};
INSTANTIATE_TEST_SUITE_P(Optimizer, WrongState, ::testing::ValuesIn(wrong_states()),
                         [](const auto& test) { return test.param.name; });

TEST_P(WrongState, IsRefusedAndChangesNothing) {
  Net net, other;
  torch::optim::Adam adam(groups_of(net), 0.01), mine(groups_of(other), 0.02);
  train(net, adam, 0, 2);
  train(other, mine, 0, 1);
  auto state = through_file(capture_optimizer(adam, net.names()));
  const auto before = through_file(capture_optimizer(mine, other.names()));
  EXPECT_NO_THROW(prepare_optimizer(mine, state, other.names()));
  expect_same_state(capture_optimizer(mine, other.names()), before);
  GetParam().spoil(state);
  const auto message = message_of<SnapshotError>([&] { prepare_optimizer(mine, state, other.names()); });
  for (const auto& part : GetParam().says) EXPECT_THAT(message, HasSubstr(part));
  EXPECT_THAT(message, HasSubstr("hint: "));
  expect_same_state(capture_optimizer(mine, other.names()), before);
}

}  // namespace
}  // namespace lockstep::snapshot
