// What a training step costs with lockstep, on one rank: bench/ddp/run starts the ranks and compares.
//
// First come steps that are all synchronised, whose losses are printed: pytorch.py must see the same. Then
// kinds of step take turns, so that what else the machine does hits all alike:
//
//   local     under no_sync
//   barrier   under no_sync, with a bare barrier after backward: the machine's jitter, which no library
//   removes sync      gradients are averaged
//
// and in a world of one:
//
//   bare      the module itself
//   wrapped   another of the same in DistributedDataParallel
//
// Before each step the ranks meet, outside of the measured time: no kind pays for a delay of the one before.
//
// One thread; every wait is inside the library and ends with its timeout. Prints one JSON object.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/lockstep.h>

#include "models.h"

namespace {

using Clock = std::chrono::steady_clock;
using Ddp = lockstep::DistributedDataParallel<bench::Model>;

struct Options {
  std::string model = "cnn";
  std::string backend = "auto";
  int loss_steps = 10;
  int warmup = 3;
  int turns = 40;
  bool set_to_none = false;
  bool bucket_view = true;
};

enum class Kind { Local, Barrier, Sync, Bare, Wrapped };

const char* name_of(Kind kind) {
  constexpr std::array kNames = {"local", "barrier", "sync", "bare", "wrapped"};
  return kNames[static_cast<size_t>(kind)];
}

double status_mib(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::stod(line.substr(field.size() + 1)) / 1024;
  }
  return 0;
}

class Trainer {
 public:
  Trainer(const Options& options, std::shared_ptr<lockstep::ProcessGroup> group)
      : options_(options),
        group_(std::move(group)),
        model_(bench::make_model(options.model)),
        ddp_(model_, group_, {.gradient_as_bucket_view = options.bucket_view}),
        optimizer_(model_->parameters(), torch::optim::AdamOptions(1e-3)) {}

  Ddp& ddp() { return ddp_; }
  bench::Model& model() { return *model_; }
  double loss() const { return loss_.item<double>(); }  // of the last step

  // Returns how long it took, in ms.
  double step(Kind kind, int number) {
    const auto batch = model_->batch(std::to_string(group_->rank()) + " " + std::to_string(number));
    group_->barrier();
    const auto begin = Clock::now();
    if (options_.set_to_none) {
      model_->zero_grad(true);
    } else {
      optimizer_.zero_grad();
    }
    std::optional<lockstep::NoSync> local;
    if (kind == Kind::Local || kind == Kind::Barrier) local.emplace(ddp_.no_sync());
    const auto output = kind == Kind::Bare ? model_->forward(batch.input) : ddp_.forward(batch.input);
    loss_ = model_->loss(output, batch.target);
    loss_.backward();
    if (kind == Kind::Barrier) group_->barrier();
    optimizer_.step();
    const double took = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    loss_ = loss_.detach();
    return took;
  }

 private:
  const Options& options_;
  std::shared_ptr<lockstep::ProcessGroup> group_;
  std::shared_ptr<bench::Model> model_;
  Ddp ddp_;
  torch::optim::Adam optimizer_;
  at::Tensor loss_;
};

// The memory that gradients live in: the pieces by their addresses. As many as there are buckets when it is
// theirs.
std::map<const void*, int64_t> gradient_memory(const bench::Model& model) {
  std::map<const void*, int64_t> pieces;
  for (const auto& parameter : model.parameters()) {
    if (!parameter.grad().defined()) continue;
    const auto& storage = parameter.grad().storage();
    pieces[storage.data()] = static_cast<int64_t>(storage.nbytes());
  }
  return pieces;
}

nlohmann::json run(const Options& options) {
  const auto group =
      lockstep::init_process_group({.backend = options.backend, .timeout = std::chrono::minutes(2)});
  const bool alone = group->world_size() == 1;
  Trainer trainer(options, group);
  std::optional<Trainer> bare;
  if (alone) bare.emplace(options, group);

  std::vector<double> losses;
  int number = 0;
  for (; number < options.loss_steps; ++number) {
    trainer.step(alone ? Kind::Wrapped : Kind::Sync, number);
    losses.push_back(trainer.loss());
    if (bare) bare->step(Kind::Bare, number);
  }
  trainer.ddp().verify_replicas();
  const auto stats = trainer.ddp().stats();
  const auto gradients = gradient_memory(trainer.model());

  auto order =
      alone ? std::vector{Kind::Bare, Kind::Wrapped} : std::vector{Kind::Local, Kind::Barrier, Kind::Sync};
  std::map<std::string, std::vector<double>> times;
  for (int turn = 0; turn < options.warmup + options.turns; ++turn) {
    for (const auto kind : order) {
      const double took = (kind == Kind::Bare ? *bare : trainer).step(kind, number++);
      if (turn >= options.warmup) times[name_of(kind)].push_back(took);
    }
    // All orders in turn: each kind comes after each other one.
    std::next_permutation(order.begin(), order.end());
  }
  const auto last = trainer.ddp().stats();
  group->barrier();

  int64_t parameters = 0, parameter_bytes = 0, gradient_bytes = 0;
  for (const auto& [memory, bytes] : gradients) gradient_bytes += bytes;
  for (const auto& parameter : trainer.model().parameters()) {
    parameters += parameter.numel();
    parameter_bytes += static_cast<int64_t>(parameter.nbytes());
  }
  nlohmann::json result = {{"program", "lockstep"},
                           {"version", TORCH_VERSION},
                           {"backend", group->backend()},
                           {"model", options.model},
                           {"rank", group->rank()},
                           {"world", group->world_size()},
                           {"set_to_none", options.set_to_none},
                           {"parameters", parameters},
                           {"parameter_bytes", parameter_bytes},
                           {"gradient_bytes", gradient_bytes},
                           {"gradient_pieces", gradients.size()},
                           {"bucket_bytes", stats.bytes},
                           {"buckets", stats.buckets.size()},
                           {"losses", losses},
                           {"times_ms", times},
                           {"peak_mib", status_mib("VmHWM")}};
  if (last.steps > 0) {
    result["communication_ms"] = 1e3 * last.total_communication / static_cast<double>(last.steps);
    result["exposed_ms"] = 1e3 * last.total_exposed / static_cast<double>(last.steps);
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "The cost of training steps, on one rank. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say which");
  app.add_option("--model", options.model, "cnn, gpt or mlp")
      ->check(CLI::IsMember({"cnn", "gpt", "mlp"}))
      ->capture_default_str();
  app.add_option("--backend", options.backend, "auto, gloo or shm")->capture_default_str();
  app.add_option("--loss-steps", options.loss_steps, "synchronised steps at the beginning, with losses")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--warmup", options.warmup, "turns of all kinds before the measured ones")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--turns", options.turns, "measured steps of each kind")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--set-to-none", options.set_to_none, "drop gradients between steps instead of zeroing them");
  app.add_flag("--bucket-view,!--no-bucket-view", options.bucket_view, "gradients live in the buckets");
  CLI11_PARSE(app, argc, argv);
  try {
    std::printf("%s\n", run(options).dump().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_train_step: %s\n", error.what());
    return 1;
  }
}
