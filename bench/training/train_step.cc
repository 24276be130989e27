// Measures a training step with lockstep, on one rank. bench/training/part.py starts the ranks and compares.
//
// The first steps are all synchronised, and their losses are printed: pytorch.py must compute the same. Then
// the kinds of step alternate, so that other activity of the machine affects all of them equally. With
// DistributedDataParallel:
//
//   local     under no_sync
//   barrier   under no_sync, with a bare barrier after backward: shows the machine's own jitter
//   sync      gradients are averaged
//   strong    the same with the batch divided by the number of ranks
//
// With world size 1:
//
//   bare      the module itself
//   wrapped   the same module in DistributedDataParallel
//
// In one process that combines the batches of --parts ranks, without a wrapper or with DataParallel:
//
//   step
//
// Before each step the ranks synchronise, outside the measured time, so that no kind is charged for a delay
// of the previous one.
//
// One thread. Every wait is inside the library and limited by its timeout. Prints one JSON object.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <exception>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/Parallel.h>

#include <lockstep/data_parallel.h>
#include <lockstep/lockstep.h>

#include "models.h"

namespace {

using Clock = std::chrono::steady_clock;
using Ddp = lockstep::DistributedDataParallel<bench::Model>;
using Forward = std::function<at::Tensor(const at::Tensor&)>;

struct Options {
  std::string model = "cnn";
  std::string wrap = "ddp";
  std::string backend = "auto";
  std::string hook = "none";
  std::string optimizer = "plain";
  std::vector<std::string> kinds;
  int64_t rows = 0;
  int parts = 1;
  int threads = 0;
  int loss_steps = 10;
  int warmup = 3;
  int turns = 40;
  bool set_to_none = false;
  bool bucket_view = true;
  double bucket_cap_mib = 25;
};

enum class Kind { Local, Barrier, Sync, Strong, Bare, Wrapped, Step };

const char* name_of(Kind kind) {
  constexpr std::array kNames = {"local", "barrier", "sync", "strong", "bare", "wrapped", "step"};
  return kNames[static_cast<size_t>(kind)];
}

// Returns `field` of a file in /proc/self, which contains it in kB.
double own_mib(const std::string& file, const std::string& field) {
  std::ifstream status("/proc/self/" + file);
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::stod(line.substr(field.size() + 1)) / 1024;
  }
  return 0;
}

// The CPU time of all threads of this process.
double cpu_ms() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return 1e3 * static_cast<double>(used.tv_sec) + 1e-6 * static_cast<double>(used.tv_nsec);
}

struct Cost {
  double wall_ms = 0, cpu_ms = 0;
};

class Trainer {
 public:
  Trainer(const Options& options, std::shared_ptr<lockstep::ProcessGroup> group)
      : options_(options),
        group_(std::move(group)),
        model_(bench::make_model(options.model)),
        rows_(options.rows > 0 ? options.rows : model_->usual_rows()) {
    if (options.wrap == "ddp") {
      ddp_.emplace(model_, group_,
                   lockstep::DdpOptions{.bucket_cap_mb = options.bucket_cap_mib,
                                        .gradient_as_bucket_view = options.bucket_view,
                                        .share_parameters = options.optimizer == "shared"});
      if (options.hook == "bf16") ddp_->register_comm_hook(lockstep::hooks::bf16_compress());
      if (options.hook == "fp16") ddp_->register_comm_hook(lockstep::hooks::fp16_compress());
    } else if (options.wrap == "data_parallel") {
      data_parallel_.emplace(model_, lockstep::DataParallelOptions{.replicas = options.parts});
    }
    // With the default epsilon, Adam uses little more than a gradient's sign: rounding would change the
    // losses, and a gradient that was summed instead of averaged would not.
    const auto adam = torch::optim::AdamOptions(1e-3).eps(1e-3);
    if (options.optimizer == "plain") {
      optimizer_ = std::make_unique<torch::optim::Adam>(model_->parameters(), adam);
    } else {
      optimizer_ = std::make_unique<lockstep::ShardedOptimizer>(*ddp_, adam);
    }
  }

  Ddp* ddp() { return ddp_ ? &*ddp_ : nullptr; }
  bench::Model& model() { return *model_; }
  double loss() const { return loss_.item<double>(); }  // of the last step

  Cost step(Kind kind, int number) {
    const auto batch = batch_of(number, kind == Kind::Strong ? rows_ / group_->world_size() : rows_);
    group_->barrier();
    const double cpu_begin = cpu_ms();
    const auto begin = Clock::now();
    if (options_.set_to_none) {
      model_->zero_grad(true);
    } else {
      optimizer_->zero_grad();
    }
    std::optional<lockstep::NoSync> local;
    if (kind == Kind::Local || kind == Kind::Barrier) local.emplace(ddp_->no_sync());
    loss_ = model_->loss(forward(kind, batch.input), batch.target);
    loss_.backward();
    if (kind == Kind::Barrier) group_->barrier();
    optimizer_->step();
    const Cost cost{std::chrono::duration<double, std::milli>(Clock::now() - begin).count(),
                    cpu_ms() - cpu_begin};
    loss_ = loss_.detach();
    return cost;
  }

 private:
  at::Tensor forward(Kind kind, const at::Tensor& input) {
    if (ddp_ && kind != Kind::Bare) return ddp_->forward(input);
    if (data_parallel_) return (*data_parallel_)(input);
    return model_->forward(input);
  }

  // The batch of this rank, or of several ranks.
  bench::Batch batch_of(int number, int64_t rows) const {
    std::vector<at::Tensor> inputs, targets;
    for (int part = group_->rank(); part < group_->rank() + options_.parts; ++part) {
      auto batch = model_->batch(std::to_string(part) + " " + std::to_string(number), rows);
      inputs.push_back(std::move(batch.input));
      targets.push_back(std::move(batch.target));
    }
    return {torch::cat(inputs), torch::cat(targets)};
  }

  const Options& options_;
  std::shared_ptr<lockstep::ProcessGroup> group_;
  std::shared_ptr<bench::Model> model_;
  const int64_t rows_;
  std::optional<Ddp> ddp_;
  std::optional<lockstep::DataParallel<bench::Model>> data_parallel_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  at::Tensor loss_;
};

// The blocks of memory that contain gradients, by their addresses. If these are the buckets, there is one
// block per bucket.
std::map<const void*, int64_t> gradient_memory(const bench::Model& model) {
  std::map<const void*, int64_t> pieces;
  for (const auto& parameter : model.parameters()) {
    if (!parameter.grad().defined()) continue;
    const auto& storage = parameter.grad().storage();
    pieces[storage.data()] = static_cast<int64_t>(storage.nbytes());
  }
  return pieces;
}

std::vector<Kind> kinds_that_can_be(const Options& options, const lockstep::ProcessGroup& group) {
  if (options.wrap != "ddp") return {Kind::Step};
  if (options.optimizer != "plain") return {Kind::Sync, Kind::Strong};  // its steps always average
  if (group.world_size() == 1) return {Kind::Bare, Kind::Wrapped};
  return {Kind::Local, Kind::Barrier, Kind::Sync, Kind::Strong};
}

std::vector<Kind> kinds_of(const Options& options, const lockstep::ProcessGroup& group) {
  auto kinds = kinds_that_can_be(options, group);
  if (options.kinds.empty()) return kinds;
  std::erase_if(kinds, [&](Kind kind) {
    return std::find(options.kinds.begin(), options.kinds.end(), name_of(kind)) == options.kinds.end();
  });
  if (kinds.empty()) throw std::invalid_argument("none of these kinds of step is possible here");
  return kinds;
}

// Each turn starts with another kind, and every other turn is reversed, so that no kind always follows the
// same one.
std::vector<Kind> order_of(std::vector<Kind> kinds, int turn) {
  std::rotate(kinds.begin(), kinds.begin() + turn % static_cast<int>(kinds.size()), kinds.end());
  if (turn % 2 == 1) std::reverse(kinds.begin(), kinds.end());
  return kinds;
}

nlohmann::json run(const Options& options) {
  // Always called, because it also tunes the process, and the heap setting alone makes a large difference.
  const auto group =
      lockstep::init_process_group({.backend = options.backend, .timeout = std::chrono::minutes(2)});
  if (options.threads > 0) at::set_num_threads(options.threads);
  const auto kinds = kinds_of(options, *group);
  const bool alone = options.wrap == "ddp" && options.optimizer == "plain" && group->world_size() == 1;
  Trainer trainer(options, group);
  std::optional<Trainer> bare;
  if (alone) bare.emplace(options, group);

  std::vector<double> losses;
  int number = 0;
  for (; number < options.loss_steps; ++number) {
    trainer.step(options.wrap != "ddp" ? Kind::Step : alone ? Kind::Wrapped : Kind::Sync, number);
    losses.push_back(trainer.loss());
    if (bare) bare->step(Kind::Bare, number);
  }
  lockstep::DdpStats stats;
  if (auto* ddp = trainer.ddp()) {
    ddp->verify_replicas();
    stats = ddp->stats();
  }
  const auto gradients = gradient_memory(trainer.model());

  const auto before = trainer.ddp() != nullptr ? trainer.ddp()->stats() : lockstep::DdpStats{};
  std::map<std::string, std::vector<double>> times, cpu;
  for (int turn = 0; turn < options.warmup + options.turns; ++turn) {
    for (const auto kind : order_of(kinds, turn)) {
      const auto cost = (kind == Kind::Bare ? *bare : trainer).step(kind, number++);
      if (turn < options.warmup) continue;
      times[name_of(kind)].push_back(cost.wall_ms);
      cpu[name_of(kind)].push_back(cost.cpu_ms);
    }
  }
  const auto after = trainer.ddp() != nullptr ? trainer.ddp()->stats() : lockstep::DdpStats{};
  group->barrier();
  const double share_mib = own_mib("smaps_rollup", "Pss");
  group->barrier();  // no rank exits while others measure the memory that they share with it

  int64_t parameters = 0, parameter_bytes = 0, gradient_bytes = 0;
  for (const auto& [memory, bytes] : gradients) gradient_bytes += bytes;
  for (const auto& parameter : trainer.model().parameters()) {
    parameters += parameter.numel();
    parameter_bytes += static_cast<int64_t>(parameter.nbytes());
  }
  return {{"program", "lockstep"},
          {"version", TORCH_VERSION},
          {"backend", group->backend()},
          {"model", options.model},
          {"rank", group->rank()},
          {"world", group->world_size()},
          {"rows", options.rows > 0 ? options.rows : trainer.model().usual_rows()},
          {"threads", at::get_num_threads()},
          {"parameters", parameters},
          {"parameter_bytes", parameter_bytes},
          {"gradient_bytes", gradient_bytes},
          {"gradient_pieces", gradients.size()},
          {"bucket_bytes", stats.bytes},
          {"buckets", stats.buckets.size()},
          {"losses", losses},
          {"times_ms", times},
          {"cpu_ms", cpu},
          {"communication_s", after.total_communication - before.total_communication},
          {"exposed_s", after.total_exposed - before.total_exposed},
          {"peak_mib", own_mib("status", "VmHWM")},
          {"share_mib", share_mib}};
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Measures training steps on one rank, which RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT define");
  app.option_defaults()->always_capture_default();
  app.add_option("--model", options.model,
                 "cnn, gpt, mlp, mingpt, resnet, or stack- followed by a number of parameters");
  app.add_option("--wrap", options.wrap, "ddp, data_parallel or none")
      ->check(CLI::IsMember({"ddp", "data_parallel", "none"}));
  app.add_option("--backend", options.backend, "auto, gloo, hybrid or shm");
  app.add_option("--hook", options.hook, "with ddp: none, bf16 or fp16")
      ->check(CLI::IsMember({"none", "bf16", "fp16"}));
  app.add_option(
         "--optimizer", options.optimizer,
         "Adam: plain (LibTorch's), or with ddp sharded, or shared (sharded, one copy of the parameters)")
      ->check(CLI::IsMember({"plain", "sharded", "shared"}));
  app.add_option("--kinds", options.kinds, "kinds of step; default: all that are possible")->delimiter(',');
  app.add_option("--rows", options.rows, "rows of a rank's batch; 0: the model's default")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--parts", options.parts,
                 "without ddp: number of ranks whose batches are combined, and of replicas")
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "LibTorch's threads; 0: unchanged")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--loss-steps", options.loss_steps, "synchronised steps at the start, with losses")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--warmup", options.warmup, "turns before the measured ones")->check(CLI::NonNegativeNumber);
  app.add_option("--turns", options.turns, "measured steps of each kind")->check(CLI::NonNegativeNumber);
  app.add_option("--bucket-cap-mib", options.bucket_cap_mib, "bucket size")->check(CLI::PositiveNumber);
  app.add_flag("--set-to-none", options.set_to_none, "drop gradients between steps instead of zeroing them");
  app.add_flag("--bucket-view,!--no-bucket-view", options.bucket_view, "gradients are views of the buckets");
  CLI11_PARSE(app, argc, argv);
  if (options.optimizer != "plain" && options.wrap != "ddp") {
    std::fprintf(stderr, "bench_train_step: --optimizer %s needs --wrap ddp\n", options.optimizer.c_str());
    return 1;
  }
  try {
    std::printf("%s\n", run(options).dump().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_train_step: %s\n", error.what());
    return 1;
  }
}
