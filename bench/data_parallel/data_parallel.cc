// What a training step costs with one of three ways of using the machine; bench/data_parallel/run compares.
//
//   single   the module alone; --threads says how many OpenMP and BLAS threads it has
//   threads  DataParallel, --replicas of them
//   ddp      DistributedDataParallel, one rank of several
//
// All train the same model with the same data: a step's batch is that of --parts ranks, which the first two
// ways take as one. Their losses must be the same, and are printed.
//
// Prints one JSON object, on rank 0.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <ATen/Parallel.h>

#include <lockstep/data_parallel.h>
#include <lockstep/lockstep.h>

#include "../ddp/models.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string model = "cnn";
  std::string way = "single";
  int parts = 2;
  int threads = 0;
  int warmup = 5;
  int steps = 40;
};

// The models of bench/ddp/models.h are not Cloneable. They initialise themselves alike, whatever their values
// are then.
template <class Net>
struct Copyable : Net {
  std::shared_ptr<torch::nn::Module> clone(
      const c10::optional<torch::Device>& device = c10::nullopt) const override {
    auto copy = std::make_shared<Copyable>();
    if (device) copy->to(*device);
    const torch::NoGradGuard no_grad;
    const auto ours = this->parameters(), theirs = copy->parameters();
    for (size_t i = 0; i < ours.size(); ++i) theirs[i].copy_(ours[i]);
    return copy;
  }
};

std::shared_ptr<bench::Model> make_model(const std::string& name) {
  std::shared_ptr<bench::Model> model;
  if (name == "cnn") {
    model = std::make_shared<Copyable<bench::Cnn>>();
  } else {
    model = std::make_shared<Copyable<bench::Mlp>>();
  }
  bench::initialise(*model);
  return model;
}

bench::Batch batch_of(const bench::Model& model, int step, int first, int parts) {
  std::vector<at::Tensor> inputs, targets;
  for (int part = first; part < first + parts; ++part) {
    const auto batch = model.batch(std::to_string(part) + " " + std::to_string(step));
    inputs.push_back(batch.input);
    targets.push_back(batch.target);
  }
  return {torch::cat(inputs), torch::cat(targets)};
}

struct Times {
  std::vector<double> forward_ms, backward_ms, step_ms;  // the step: both, and the optimizer's
  std::vector<double> losses;
};

Times train(const Options& options, bench::Model& model,
            const std::function<at::Tensor(const at::Tensor&)>& forward, int first, int parts,
            const std::function<void()>& meet) {
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(1e-3));
  Times times;
  const auto ms = [](Clock::duration took) {
    return std::chrono::duration<double, std::milli>(took).count();
  };
  for (int step = 0; step < options.warmup + options.steps; ++step) {
    const auto batch = batch_of(model, step, first, parts);
    meet();
    const auto begin = Clock::now();
    optimizer.zero_grad();
    auto loss = model.loss(forward(batch.input), batch.target);
    const auto forwarded = Clock::now();
    loss.backward();
    const auto backwarded = Clock::now();
    optimizer.step();
    const auto end = Clock::now();
    times.losses.push_back(loss.item<double>());
    if (step < options.warmup) continue;
    times.forward_ms.push_back(ms(forwarded - begin));
    times.backward_ms.push_back(ms(backwarded - forwarded));
    times.step_ms.push_back(ms(end - begin));
  }
  return times;
}

nlohmann::json run(const Options& options) {
  // In every way, since it also tunes the process: the heap that it keeps is worth more than any of the ways.
  const auto group = lockstep::init_process_group();
  const auto model = make_model(options.model);
  if (options.threads > 0) at::set_num_threads(options.threads);
  Times times;
  bool reports = true;
  if (options.way == "ddp") {
    lockstep::DistributedDataParallel ddp(model, group);
    const int parts = options.parts / group->world_size();
    times = train(
        options, *model, [&](const at::Tensor& x) { return ddp(x); }, group->rank() * parts, parts,
        [&] { group->barrier(); });
    auto losses = torch::tensor(times.losses, at::kDouble);
    group->all_reduce(losses);
    losses /= group->world_size();
    times.losses.assign(losses.data_ptr<double>(), losses.data_ptr<double>() + losses.numel());
    reports = group->rank() == 0;
  } else if (options.way == "threads") {
    lockstep::DataParallel dp(model, {.replicas = options.parts});
    times = train(
        options, *model, [&](const at::Tensor& x) { return dp(x); }, 0, options.parts, [] {});
  } else {
    times = train(
        options, *model, [&](const at::Tensor& x) { return model->forward(x); }, 0, options.parts, [] {});
  }
  if (!reports) return nullptr;
  return {{"model", options.model},           {"way", options.way},       {"forward_ms", times.forward_ms},
          {"backward_ms", times.backward_ms}, {"step_ms", times.step_ms}, {"losses", times.losses},
          {"threads", at::get_num_threads()}, {"version", TORCH_VERSION}};
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("The cost of a training step with one way of using the cores");
  app.add_option("--model", options.model, "cnn or mlp")
      ->check(CLI::IsMember({"cnn", "mlp"}))
      ->capture_default_str();
  app.add_option("--way", options.way, "single, threads or ddp")
      ->check(CLI::IsMember({"single", "threads", "ddp"}))
      ->capture_default_str();
  app.add_option("--parts", options.parts, "replicas or ranks that share a step's batch")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--threads", options.threads, "LibTorch's threads; 0: as they are")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--warmup", options.warmup, "steps before the measured ones")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--steps", options.steps, "measured steps")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    if (const auto result = run(options); !result.is_null()) std::printf("%s\n", result.dump().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_data_parallel: %s\n", error.what());
    return 1;
  }
}
