// Times training steps of one model with LibTorch's optimizer and with lockstep's sharded one, in turn.
// Prints the medians as one JSON object. Each time is from one barrier to the next: that of the slowest rank.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <lockstep/lockstep.h>

#include "../training/models.h"

namespace {

struct Options {
  std::string model = "mlp", optimizer = "adam";
  bool share = false;
  int steps = 20, warmup = 4;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        group_(lockstep::init_process_group()),
        plain_model_(bench::make_model(options.model)),
        model_(bench::make_model(options.model)),
        plain_(plain_model_, group_, {.checks = false}),
        ddp_(model_, group_, {.checks = false, .share_parameters = options.share}) {
    if (options.optimizer == "adam") {
      use(torch::optim::AdamOptions(1e-3));
    } else if (options.optimizer == "sgd") {
      use(torch::optim::SGDOptions(1e-3).momentum(0.9));
    } else {
      throw CLI::ValidationError("--optimizer", "adam or sgd");
    }
    for (const auto& parameter : plain_.parameters()) parameters_ += parameter.numel();
    flat_ = group_->empty({parameters_}, at::kFloat).zero_();
    copied_ = at::zeros({parameters_});
  }

  nlohmann::json run() {
    for (int step = 0; step < options_.warmup + options_.steps; ++step) {
      const auto batch =
          model_->batch(std::to_string(step) + "/" + std::to_string(group_->rank()), model_->usual_rows());
      record_ = step >= options_.warmup;
      {
        const auto guard = plain_.no_sync();
        backward("backward_no_sync", plain_, batch);
      }
      timed("optimizer", [&] { optimizer_->step(); });
      backward("backward", plain_, batch);
      optimizer_->step();
      backward("backward_sharded", ddp_, batch);
      timed("sharded", [&] { sharded_->step(); });
      timed("all_reduce", [&] { group_->all_reduce(flat_, lockstep::ReduceOp::Avg); });
      timed("copy", [&] { copied_.copy_(flat_); });
    }
    nlohmann::json ms;
    for (auto& [name, times] : times_) {
      std::sort(times.begin(), times.end());
      ms[name] = times[times.size() / 2];
    }
    return {{"parameters", parameters_},
            {"world", group_->world_size()},
            {"state_bytes", sharded_->state_bytes()},
            {"ms", ms}};
  }

 private:
  template <class Chosen>
  void use(const Chosen& chosen) {
    sharded_ = std::make_unique<lockstep::ShardedOptimizer>(ddp_, chosen);
    optimizer_ = sharded_->blank_plain();
    // The same kind, of the other model.
    optimizer_->param_groups().front().params() = plain_.parameters();
  }

  template <class Body>
  void timed(const std::string& name, const Body& body) {
    group_->barrier();
    const auto begin = std::chrono::steady_clock::now();
    body();
    group_->barrier();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    if (record_) times_[name].push_back(took.count());
  }

  void backward(const std::string& name, auto& ddp, const bench::Batch& batch) {
    for (const auto& parameter : ddp.parameters()) parameter.mutable_grad().reset();
    timed(name, [&] { ddp.module()->loss(ddp(batch.input), batch.target).backward(); });
  }

  const Options options_;
  const std::shared_ptr<lockstep::ProcessGroup> group_;
  const std::shared_ptr<bench::Model> plain_model_, model_;
  lockstep::DistributedDataParallel<bench::Model> plain_, ddp_;
  std::unique_ptr<lockstep::ShardedOptimizer> sharded_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  int64_t parameters_ = 0;
  at::Tensor flat_, copied_;
  bool record_ = false;
  std::map<std::string, std::vector<double>> times_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times steps with LibTorch's optimizer and with lockstep's sharded one.");
  app.add_option("--model", options.model, "model of bench/training");
  app.add_option("--optimizer", options.optimizer, "adam or sgd");
  app.add_flag("--share", options.share, "one copy of the parameters for both ranks");
  app.add_option("--steps", options.steps, "measured steps")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    std::puts(Bench(options).run().dump().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
