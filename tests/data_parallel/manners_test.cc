// How DataParallel interacts with its environment: the module's buffers and modes, the caller's state,
// threads, errors and misuse.
#include <atomic>
#include <barrier>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>
#include <thread>

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>

#include <lockstep/error.h>

#include "data_parallel/nets.h"
#include "support/run_ranks.h"

// LibTorch 2.4 deprecates these names of autocast, but 1.13 has no others.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// ---- Buffers and modes

struct Normed : torch::nn::Cloneable<Normed> {
  Normed() { reset(); }
  void reset() override {
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    linear = register_module("linear", torch::nn::Linear(8, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return linear->forward(norm->forward(x)); }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear linear{nullptr};
};

TEST(DataParallel, StatisticsOfBatchNormFollowTheFirstPart) {
  const auto alone = make<Normed>(), model = make<Normed>();
  DataParallel dp(model, {.replicas = 2});
  for (int step = 0; step < 3; ++step) {
    const auto parts = batch_of(8, step).chunk(2);
    const auto first = alone->forward(parts[0]);
    const auto output = dp(batch_of(8, step));
    expect_close(output.narrow(0, 0, 4), first);  // normalized with the statistics of its own part
    loss_of(output).backward();
  }
  expect_close(model->buffers(), alone->buffers());
  EXPECT_EQ(model->norm->num_batches_tracked.item<int64_t>(), 3);
}

TEST(DataParallel, EvaluationUsesTheStatisticsInAllReplicas) {
  const auto alone = make<Normed>(), model = make<Normed>();
  DataParallel dp(model, {.replicas = 3});
  for (const auto& net : {alone, model}) {
    const torch::NoGradGuard no_grad;
    net->norm->running_mean.fill_(0.3);  // after the copies were made
    net->norm->running_var.fill_(2);
  }
  alone->eval();
  dp.eval();
  EXPECT_FALSE(dp->is_training());
  expect_close(dp(batch_of(9)), alone->forward(batch_of(9)));
  dp.train();
  EXPECT_TRUE(dp->is_training());
}

TEST(DataParallel, APartThatEvaluatesInATrainingModuleDoesSoInAllReplicas) {
  const auto alone = make<Normed>(), model = make<Normed>();
  DataParallel dp(model, {.replicas = 2});
  alone->norm->eval();
  model->norm->eval();
  const auto expected = alone->forward(batch_of(8)), output = dp(batch_of(8));
  expect_close(output, expected);
  loss_of(expected).backward();
  loss_of(output).backward();
  expect_close(gradients_of(*model), gradients_of(*alone));
}

// The buffers of the copies get new values while an earlier graph still needs the old ones.
TEST(DataParallel, ForwardsWithBatchNormMayPrecedeOneBackward) {
  for (const bool training : {true, false}) {
    DataParallel dp(make<Normed>(), {.replicas = 2});
    dp.train(training);
    const auto first = loss_of(dp(batch_of(8))), second = loss_of(dp(batch_of(8, 1)));
    (first + second).backward();
    EXPECT_TRUE(dp->linear->weight.grad().isfinite().all().item<bool>());
  }
}

struct Scaled : torch::nn::Cloneable<Scaled> {
  Scaled() { reset(); }
  void reset() override { linear = register_module("linear", torch::nn::Linear(8, 4)); }
  at::Tensor forward(const at::Tensor& x) { return linear->forward(x) * factor; }
  torch::nn::Linear linear{nullptr};
  double factor = 1;
};

TEST(DataParallel, RefreshBringsChangedMembersToTheCopies) {
  const auto model = make<Scaled>();
  DataParallel dp(model, {.replicas = 2});
  dp(batch_of(4));
  model->factor = 3;
  dp.refresh();
  expect_close(dp(batch_of(4)), model->forward(batch_of(4)));
}

TEST(DataParallel, AReplacedPartIsFollowed) {
  const auto model = make<Scaled>();
  DataParallel dp(model, {.replicas = 2});
  dp(batch_of(4));
  model->linear = model->replace_module("linear", torch::nn::Linear(8, 6));
  expect_close(dp(batch_of(4)), model->forward(batch_of(4)));
}

TEST(DataParallel, TheProgramsRandomNumbersAreTheSameWithIt) {
  const auto model = make();
  torch::manual_seed(5);
  const auto expected = torch::rand({4});
  torch::manual_seed(5);
  DataParallel dp(model, {.replicas = 4});
  dp(batch_of(8));
  EXPECT_TRUE(torch::rand({4}).equal(expected));
}

TEST(DataParallel, TheCopiesUseTheMemoryOfTheModule) {
  struct Told : torch::nn::Cloneable<Told> {
    Told() { reset(); }
    void reset() override { weight = register_parameter("weight", torch::ones({8})); }
    at::Tensor forward(const at::Tensor&) {
      return torch::full({1}, static_cast<int64_t>(reinterpret_cast<uintptr_t>(weight.data_ptr())));
    }
    at::Tensor weight;
  };
  const auto model = make<Told>();
  DataParallel dp(model, {.replicas = 3});
  const auto addresses = dp(batch_of(3));
  EXPECT_TRUE((addresses == addresses[0]).all().item<bool>());
}

// ---- Module types

TEST(DataParallel, HoldersAndPointersAreTaken) {
  torch::nn::Linear linear(8, 4);
  DataParallel of_holder(linear, {.replicas = 2});
  static_assert(std::is_same_v<decltype(of_holder), DataParallel<torch::nn::LinearImpl>>);
  expect_close(of_holder(batch_of(4)), linear(batch_of(4)));

  torch::nn::Sequential sequential(torch::nn::Linear(8, 6), torch::nn::ReLU(), torch::nn::Linear(6, 4));
  DataParallel of_sequential(sequential);
  const auto expected = sequential->forward(batch_of(5));
  expect_close(of_sequential(batch_of(5)), expected);
  loss_of(of_sequential(batch_of(5))).backward();
  EXPECT_TRUE(sequential->parameters()[0].grad().defined());

  DataParallel of_pointer(make());
  EXPECT_GE(of_pointer.replicas(), 1);
  EXPECT_EQ(of_pointer.module()->parameters().size(), of_pointer.parameters().size());
  auto moved = std::move(of_pointer);
  EXPECT_EQ(moved(batch_of(4)).size(0), 4);
}

TEST(DataParallel, RecurrentLayersWork) {
  torch::manual_seed(0);
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(8, 4).batch_first(true));
  DataParallel dp(lstm, {.replicas = 2});
  const auto x = batch_of(6).view({6, 1, 8});
  expect_close(std::get<0>(dp(x)), std::get<0>(lstm(x)));
  loss_of(std::get<0>(dp(x))).backward();
  EXPECT_TRUE(lstm->parameters()[0].grad().defined());
}

TEST(DataParallel, AModuleThatCannotBeCopiedIsAnErrorThatSaysWhatToDo) {
  struct Plain : torch::nn::Module {
    at::Tensor forward(at::Tensor x) { return x; }
  };
  EXPECT_THAT([] { DataParallel dp(std::make_shared<Plain>(), {.replicas = 2}); },
              ThrowsMessage<UsageError>(HasSubstr("torch::nn::Cloneable")));
  DataParallel alone(std::make_shared<Plain>(), {.replicas = 1});  // makes no copy
  EXPECT_EQ(alone(batch_of(4)).size(0), 4);
}

struct Derived : Net {
  at::Tensor forward(const at::Tensor& x) { return Net::forward(x) * 2; }
};

TEST(DataParallel, ACopyOfAnotherTypeIsAnError) {
  EXPECT_THAT([] { DataParallel dp(std::make_shared<Derived>(), {.replicas = 2}); },
              ThrowsMessage<UsageError>(HasSubstr("not return a true copy")));
  // Also if the static type is only the base class.
  EXPECT_THAT([] { DataParallel dp(std::shared_ptr<Net>(std::make_shared<Derived>()), {.replicas = 2}); },
              ThrowsMessage<UsageError>(HasSubstr("not return a true copy")));
}

TEST(DataParallel, BadOptionsAreErrors) {
  EXPECT_THROW(DataParallel(make(), {.replicas = -1}), UsageError);
  EXPECT_THROW(DataParallel(std::shared_ptr<Net>(), {.replicas = 2}), UsageError);
  if (!torch::cuda::is_available()) {
    EXPECT_THAT(
        [] {
          DataParallel dp(make(), {.devices = {0, 1}});
        },
        ThrowsMessage<UsageError>(HasSubstr("CUDA is not available")));
  }
}

// ---- The caller's state

// The thread-local state during a forward, as a row of a tensor.
struct Watcher : torch::nn::Cloneable<Watcher> {
  Watcher() { reset(); }
  void reset() override { weight = register_parameter("weight", torch::ones({8, 4})); }
  at::Tensor forward(const at::Tensor& x) {
    const auto product = x.matmul(weight);
    return torch::tensor({int64_t{c10::GradMode::is_enabled()}, int64_t{c10::InferenceMode::is_enabled()},
                          int64_t{product.requires_grad()}, int64_t{product.scalar_type() == at::kBFloat16}})
        .view({1, 4});
  }
  at::Tensor weight;
};

void expect_rows(const at::Tensor& rows, std::vector<int64_t> expected) {
  for (int64_t i = 0; i < rows.size(0); ++i) EXPECT_TRUE(rows[i].equal(torch::tensor(expected))) << rows;
}

TEST(DataParallel, GradModesOfTheCallerHoldInTheReplicas) {
  DataParallel dp(make<Watcher>(), {.replicas = 2});
  expect_rows(dp(batch_of(4)), {1, 0, 1, 0});
  {
    const torch::NoGradGuard no_grad;
    expect_rows(dp(batch_of(4)), {0, 0, 0, 0});
  }
  {
    const c10::InferenceMode inference;
    expect_rows(dp(batch_of(4)), {0, 1, 0, 0});
  }
  expect_rows(dp(batch_of(4)), {1, 0, 1, 0});
}

TEST(DataParallel, AModuleCanBeTrainedAfterInference) {
  const auto alone = make<Normed>(), model = make<Normed>();
  DataParallel dp(model, {.replicas = 2});
  for (const bool inference : {true, false}) {
    dp.eval();
    {
      const c10::InferenceMode mode(inference);
      EXPECT_EQ(dp(batch_of(8)).is_inference(), inference);
    }
    dp.train();
    loss_of(dp(batch_of(8))).backward();
  }
}

class Autocast {
 public:
  Autocast() {
    at::autocast::set_cpu_enabled(true);
    at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_cpu_enabled(false);
  }
};

TEST(DataParallel, AutocastOfTheCallerHoldsInTheReplicas) {
  DataParallel dp(make<Watcher>(), {.replicas = 2});
  {
    const Autocast autocast;
    expect_rows(dp(batch_of(4)), {1, 0, 1, 1});
  }
  expect_rows(dp(batch_of(4)), {1, 0, 1, 0});
}

TEST(DataParallel, AutocastSeesTheParametersOfEachStep) {
  const auto alone = make(), model = make();
  DataParallel dp(model, {.replicas = 2});
  torch::optim::SGD reference(alone->parameters(), 0.5), optimizer(dp.parameters(), 0.5);
  for (int step = 0; step < 4; ++step) {
    const auto run = [&](auto&& forward, torch::optim::SGD& steps) {
      steps.zero_grad();
      at::Tensor loss;
      {
        const Autocast autocast;
        loss = loss_of(forward(batch_of(8, step)).to(at::kFloat));
      }
      loss.backward();
      steps.step();
    };
    run([&](const at::Tensor& x) { return alone->forward(x); }, reference);
    run(dp, optimizer);
  }
  expect_close(model->parameters(), alone->parameters(), 2e-2);  // bfloat16 has 8 bits
}

// ---- Threads

TEST(DataParallel, ReplicasRunAtTheSameTimeInThreadsThatStay) {
  struct Meets : torch::nn::Cloneable<Meets> {
    void reset() override {}
    // Returns only when all three threads have arrived.
    at::Tensor forward(const at::Tensor& x) {
      together->arrive_and_wait();
      return torch::full({x.size(0)},
                         static_cast<int64_t>(std::hash<std::thread::id>()(std::this_thread::get_id())));
    }
    std::shared_ptr<std::barrier<>> together = std::make_shared<std::barrier<>>(3);
  };
  DataParallel dp(std::make_shared<Meets>(), {.replicas = 3});
  const auto first = dp(torch::zeros({3}));
  EXPECT_NE(first[0].item<int64_t>(), first[1].item<int64_t>());
  EXPECT_NE(first[1].item<int64_t>(), first[2].item<int64_t>());
  EXPECT_TRUE(dp(torch::zeros({3})).equal(first));
}

TEST(DataParallel, TheCallersNumberOfThreadsIsLeftAlone) {
  const int before = at::get_num_threads();
  DataParallel dp(make(), {.replicas = 2});
  dp(batch_of(4));
  EXPECT_EQ(at::get_num_threads(), before);
  int in_new_thread = 0;
  std::thread([&] { in_new_thread = at::get_num_threads(); }).join();
  EXPECT_EQ(in_new_thread, before);
}

TEST(DataParallel, ForwardsFromSeveralThreadsFollowOneAnother) {
  const auto alone = make();
  DataParallel dp(make(), {.replicas = 2});
  std::vector<std::thread> callers;
  std::atomic<int> right = 0;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int step = 0; step < 10; ++step) {
        const torch::NoGradGuard no_grad;
        const auto x = batch_of(4 + caller, step);
        right += torch::allclose(dp(x), alone->forward(x), 1e-5, 1e-5);
      }
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(right, 40);
}

struct Recursive : torch::nn::Cloneable<Recursive> {
  void reset() override {}
  at::Tensor forward(const at::Tensor& x) { return again(x); }
  std::function<at::Tensor(const at::Tensor&)> again;
};

TEST(DataParallel, AForwardThatCallsItselfIsAnErrorAndDoesNotHang) {
  const auto model = std::make_shared<Recursive>();
  std::unique_ptr<DataParallel<Recursive>> dp;
  model->again = [&](const at::Tensor& x) { return (*dp)(x); };
  dp = std::make_unique<DataParallel<Recursive>>(model, DataParallelOptions{.replicas = 2});
  EXPECT_THAT([&] { (*dp)(batch_of(8)); }, ThrowsMessage<UsageError>(HasSubstr("within its own forward")));
}

TEST(DataParallel, OneInsideAnotherWorks) {
  const auto inner = std::make_shared<DataParallel<Net>>(make(), DataParallelOptions{.replicas = 2});
  const auto model = std::make_shared<Recursive>();
  model->again = [inner](const at::Tensor& x) { return (*inner)(x); };
  DataParallel outer(model, {.replicas = 2});
  expect_close(outer(batch_of(8)), make()->forward(batch_of(8)));
}

TEST(DataParallel, AForkedProcessGetsAnErrorAndDoesNotHang) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP()
      << "the thread sanitizer does not support threads in the forked child of a process with threads";
#endif
  DataParallel dp(make(), {.replicas = 2});
  const auto outcomes = start_ranks(1, [&](int) {
    EXPECT_THROW(dp(batch_of(4)), UsageError);
    auto gone = std::move(dp);  // its destructor does not hang either
  });
  expect_success(outcomes);
  EXPECT_EQ(dp(batch_of(4)).size(0), 4);
}

// ---- Errors

struct Fails : torch::nn::Cloneable<Fails> {
  void reset() override {}
  at::Tensor forward(const at::Tensor& x) {
    if (x[0][0].item<float>() == 4) fail();
    return x;
  }
  std::function<void()> fail = [] {};
};

TEST(DataParallel, ErrorsOfAReplicaComeOutWithItsNumberAndTheNextForwardWorks) {
  const auto model = std::make_shared<Fails>();
  DataParallel dp(model, {.replicas = 2});
  const auto x = torch::arange(8, at::kFloat).view({8, 1});
  const auto fail_with = [&](std::function<void()> fail) {
    model->fail = std::move(fail);
    dp.refresh();
    return [&] { dp(x); };
  };
  EXPECT_THAT(fail_with([] { throw std::runtime_error("no luck"); }),
              ThrowsMessage<std::runtime_error>(AllOf(HasSubstr("no luck"), HasSubstr("replica 1 of 2"))));
  EXPECT_THAT(fail_with([] { TORCH_CHECK(false, "bad shape"); }),
              ThrowsMessage<c10::Error>(AllOf(HasSubstr("bad shape"), HasSubstr("replica 1 of 2"))));
  EXPECT_THAT(fail_with([] { throw TimeoutError("too late"); }),
              ThrowsMessage<TimeoutError>(AllOf(HasSubstr("too late"), HasSubstr("replica 1 of 2"))));
  EXPECT_THROW(fail_with([] { throw std::invalid_argument("types stay"); })(), std::invalid_argument);
  EXPECT_THROW(fail_with([] { throw 7; })(), int);
  fail_with([] {});
  EXPECT_TRUE(dp(x).equal(x));
}

}  // namespace
}  // namespace lockstep::testing
