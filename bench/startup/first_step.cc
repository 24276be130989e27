// A small training program, on one rank, that records the times of its events. bench/startup/part.py starts
// it under a launcher, kills one of its ranks, and compares it with first_step.py, which does the same in
// Python.
//
// Each rank appends its events to its own file, one JSON object per line, with one write each, so that no
// event of a killed rank is lost or incomplete. Times are from CLOCK_MONOTONIC, which all processes of a
// machine share.
//
// One thread. Every wait is inside the library and limited by its timeout.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unistd.h>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

namespace {

constexpr int64_t kBatch = 32, kInputs = 256, kHidden = 512, kClasses = 10;

struct Options {
  std::string backend = "auto";
  std::string events;
  std::string snapshots;
  int64_t steps = 3;
  int64_t steps_resumed = 10;
  int64_t save_every = 5;
};

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t clock_ns(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// The time at which this process was created. The kernel reports it in hundredths of a second since boot. It
// is rounded up, so that it is never before the launch.
int64_t born_ns() {
  std::ifstream file("/proc/self/stat");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string field;
  for (int number = 3; number <= 22; ++number) fields >> field;
  const int64_t since_boot = (std::stoll(field) + 1) * (1'000'000'000 / sysconf(_SC_CLK_TCK));
  return since_boot - (clock_ns(CLOCK_BOOTTIME) - clock_ns(CLOCK_MONOTONIC));
}

int number_of(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? std::atoi(text) : 0;
}

class Events {
 public:
  explicit Events(const std::filesystem::path& folder) : rank_(number_of("RANK")) {
    const auto path = folder / ("rank_" + std::to_string(rank_) + ".jsonl");
    file_ = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (file_ < 0) throw std::runtime_error("cannot write " + path.string());
  }
  ~Events() { close(file_); }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  void say(const char* event, const nlohmann::json& more = nlohmann::json::object()) {
    say_at(now_ns(), event, more);
  }
  void say_at(int64_t ns, const char* event, const nlohmann::json& more = nlohmann::json::object()) {
    nlohmann::json line = {
        {"rank", rank_}, {"pid", getpid()}, {"attempt", attempt_}, {"event", event}, {"ns", ns}};
    line.update(more);
    const auto text = line.dump() + "\n";
    if (write(file_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      throw std::runtime_error("cannot write an event");
    }
  }

 private:
  int rank_;
  int attempt_ = number_of("TORCHELASTIC_RESTART_COUNT");
  int file_;
};

void train(const Options& options, Events& events) {
  const auto group = lockstep::init_process_group({.backend = options.backend});
  events.say("group", {{"backend", group->backend()}});
  auto ones = torch::ones({1});
  group->all_reduce(ones);
  events.say("collective");
  if (ones.item<int>() != group->world_size()) throw std::runtime_error("the first collective is wrong");

  torch::manual_seed(7);
  torch::nn::Sequential
      model;  // layer by layer, so that the first gets the first random numbers, as in Python
  model->push_back(torch::nn::Linear(kInputs, kHidden));
  model->push_back(torch::nn::ReLU());
  model->push_back(torch::nn::Linear(kHidden, kHidden));
  model->push_back(torch::nn::ReLU());
  model->push_back(torch::nn::Linear(kHidden, kClasses));
  lockstep::DistributedDataParallel ddp(model, group);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));

  std::optional<lockstep::Snapshots> snapshots;
  int64_t at = 0, end = options.steps;
  if (!options.snapshots.empty()) {
    snapshots.emplace(options.snapshots, group);
    at = snapshots->resume(ddp, optimizer).step;
    events.say("resumed", {{"step", at}});
    if (at > 0) end = at + options.steps_resumed;
  }
  for (int64_t step = at + 1; step <= end; ++step) {
    // Data that depends only on the step and the rank: a repeated step must have the same loss.
    auto numbers = at::make_generator<at::CPUGeneratorImpl>(1000 * step + group->rank());
    const auto input = torch::randn({kBatch, kInputs}, numbers);
    const auto target = torch::randint(kClasses, {kBatch}, numbers, torch::kLong);
    optimizer.zero_grad();
    auto loss = torch::cross_entropy_loss(ddp(input), target);
    loss.backward();
    optimizer.step();
    events.say("step", {{"step", step}, {"loss", loss.item<double>()}});
    if (snapshots && step % options.save_every == 0) {
      snapshots->save(ddp, optimizer, {.step = step});
      events.say("saved", {{"step", step}});
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t loaded = now_ns();
  Options options;
  CLI::App app("Trains a small model and records the times of its events");
  app.add_option("--backend", options.backend, "auto, gloo or shm")->capture_default_str();
  app.add_option("--events", options.events, "folder for the events of each rank")->required();
  app.add_option("--snapshots", options.snapshots, "folder to resume from and to save to; default: none");
  app.add_option("--steps", options.steps, "the last step")->capture_default_str();
  app.add_option("--steps-resumed", options.steps_resumed, "number of steps after a resume")
      ->capture_default_str();
  app.add_option("--save-every", options.save_every, "steps between snapshots")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    Events events(options.events);
    events.say_at(born_ns(), "born");
    events.say_at(loaded, "loaded");
    try {
      train(options, events);
      events.say("done");
    } catch (const std::exception& error) {
      events.say("error", {{"text", error.what()}});
      throw;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_first_step: %s\n", error.what());
    return 1;
  }
}
