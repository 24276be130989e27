// Measures the cost of the C library's heap in a training step, under several settings.
//
// glibc allocates large blocks with mmap and returns free memory at the top of the heap to the kernel, so the
// next step must fault in the memory of its tensors again, page by page. This program trains small models
// under several settings of the allocator and prints the time, page faults and memory of each.
//
// The settings of one table alternate: each is run once, then each again, and so on, every time in a new
// process (this program, executed again with --child). Each cell is the median over the alternations, so that
// a slow moment of the machine affects all settings equally.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <malloc.h>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <torch/torch.h>

#include "tuning/plan.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string model = "mlp";
  std::vector<std::string> settings;
  int steps = 40;
  int warmup = 8;
  int alternations = 3;
  int threads = 1;
  int loaders = 0;
  bool vary_batch = false;
  bool child = false;
};

// ---- The settings

struct Setting {
  std::string name;
  std::string meaning;
  std::function<void()> inside;                                  // called at the start of main
  std::vector<std::pair<std::string, std::string>> environment;  // set before exec
};

// Allocates a large part of the heap, marks it for huge pages and returns it to malloc as one free block, not
// to the kernel. This has the effect of glibc.malloc.hugetlb=1, but from inside a running process.
void reserve_huge(size_t bytes) {
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, -1);
  void* block = std::malloc(bytes);
  if (block == nullptr) throw std::runtime_error("no address space to reserve");
  constexpr uintptr_t kHuge = 2 << 20;
  const auto begin = (reinterpret_cast<uintptr_t>(block) + kHuge - 1) / kHuge * kHuge;
  const auto end = (reinterpret_cast<uintptr_t>(block) + bytes) / kHuge * kHuge;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  std::free(block);
}

const std::vector<Setting>& settings() {
  using lockstep::tuning::Plan;
  static const std::vector<Setting> all = {
      {"default", "unmodified glibc", [] {}, {}},
      {"threshold",
       "mallopt: mmap from 32 MiB up, no trimming",
       [] {
         ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
         ::mallopt(M_TRIM_THRESHOLD, -1);
       },
       {}},
      {"no-mmap",
       "mallopt: no mmap, no trimming",
       [] {
         ::mallopt(M_MMAP_MAX, 0);
         ::mallopt(M_TRIM_THRESHOLD, -1);
       },
       {}},
      {"threshold-1g",
       "mallopt: mmap from 1 GiB up, no trimming",
       [] {
         ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
         ::mallopt(M_TRIM_THRESHOLD, -1);
       },
       {}},
      {"no-mmap-pad",
       "no-mmap, and the heap grows by 64 MiB at a time",
       [] {
         ::mallopt(M_MMAP_MAX, 0);
         ::mallopt(M_TRIM_THRESHOLD, -1);
         ::mallopt(M_TOP_PAD, 64 << 20);
       },
       {}},
      {"no-mmap-arena1",
       "no-mmap, and one arena for all threads",
       [] {
         ::mallopt(M_MMAP_MAX, 0);
         ::mallopt(M_TRIM_THRESHOLD, -1);
         ::mallopt(M_ARENA_MAX, 1);
       },
       {}},
      {"huge-only",
       "tunable: huge pages, nothing else",
       [] {},
       {{"GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"}}},
      {"no-mmap-huge",
       "no-mmap and huge pages, by tunables",
       [] {},
       {{"GLIBC_TUNABLES",
         "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=18446744073709551615"}}},
      {"reserve-huge",
       "no-mmap and huge pages, set by the process",
       [] { reserve_huge(size_t{16} << 30); },
       {}},
      {"lockstep", "the setting of init_process_group", [] { lockstep::tuning::keep_heap(); }, {}},
      {"lockstep-run", "the setting of lockstep run", [] {},
       lockstep::tuning::environment_of(Plan{.keep_heap = true})},
  };
  return all;
}

const Setting& setting_named(const std::string& name) {
  for (const auto& setting : settings()) {
    if (setting.name == name) return setting;
  }
  throw std::runtime_error("no setting is called " + name);
}

// ---- The models

struct Workload {
  torch::nn::Sequential net;
  std::function<std::pair<torch::Tensor, torch::Tensor>(int batch)> data;
  std::function<torch::Tensor(const torch::Tensor&, const torch::Tensor&)> loss;
  int batch;
};

torch::nn::Sequential dense(int layers, int width) {
  torch::nn::Sequential net;
  for (int i = 0; i < layers; ++i) {
    net->push_back(torch::nn::Linear(width, width));
    net->push_back(torch::nn::ReLU());
  }
  return net;
}

Workload regression(int layers, int width, int batch) {
  auto net = dense(layers, width);
  return {net,
          [width](int rows) {
            return std::pair(torch::randn({rows, width}), torch::randn({rows, width}));
          },
          [](const auto& output, const auto& target) { return torch::mse_loss(output, target); }, batch};
}

Workload cnn() {
  torch::nn::Sequential net(torch::nn::Conv2d(1, 32, 3), torch::nn::ReLU(), torch::nn::Conv2d(32, 64, 3),
                            torch::nn::ReLU(), torch::nn::MaxPool2d(2), torch::nn::Flatten(),
                            torch::nn::Linear(9216, 128), torch::nn::ReLU(), torch::nn::Linear(128, 10),
                            torch::nn::LogSoftmax(1));
  return {net,
          [](int rows) {
            return std::pair(torch::randn({rows, 1, 28, 28}), torch::randint(10, {rows}));
          },
          [](const auto& output, const auto& target) { return torch::nll_loss(output, target); }, 32};
}

Workload transformer() {
  constexpr int kWidth = 256, kSequence = 128;
  torch::nn::Sequential net;
  for (int i = 0; i < 2; ++i) {
    net->push_back(torch::nn::TransformerEncoderLayer(
        torch::nn::TransformerEncoderLayerOptions(kWidth, 4).dim_feedforward(4 * kWidth).dropout(0.1)));
  }
  // Sequence first, then batch.
  return {
      net,
      [](int rows) {
        return std::pair(torch::randn({kSequence, rows, kWidth}), torch::randn({kSequence, rows, kWidth}));
      },
      [](const auto& output, const auto& target) { return torch::mse_loss(output, target); }, 8};
}

const std::map<std::string, std::pair<std::string, std::function<Workload()>>>& models() {
  static const std::map<std::string, std::pair<std::string, std::function<Workload()>>> all = {
      {"mlp", {"12 layers of 1024 x 1024 (4 MiB each), batch 32", [] { return regression(12, 1024, 32); }}},
      {"wide", {"3 layers of 4096 x 4096 (64 MiB each), batch 32", [] { return regression(3, 4096, 32); }}},
      {"cnn", {"2 convolutions and 2 linear layers on 28 x 28, batch 32", cnn}},
      {"transformer", {"2 encoder layers of width 256, sequence 128, batch 8", transformer}},
  };
  return all;
}

// ---- Data-loader threads: each allocates image batches in its own arena, and the training thread frees
// them.

class Loaders {
 public:
  explicit Loaders(int count) {
    for (int i = 0; i < count; ++i) threads_.emplace_back([this] { load(); });
  }
  ~Loaders() {
    {
      std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  torch::Tensor next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !ready_.empty(); });
    auto batch = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return batch;
  }

 private:
  void load() {
    at::set_num_threads(1);
    for (;;) {
      // Read, decode, normalise, stack: three copies of the same data.
      std::vector<torch::Tensor> images;
      for (int i = 0; i < 32; ++i) {
        images.push_back(torch::zeros({3, 224, 224}, torch::kByte).to(torch::kFloat).div_(255));
      }
      auto batch = torch::stack(images);
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return done_ || ready_.size() < 2 * threads_.size(); });
      if (done_) return;
      ready_.push_back(std::move(batch));
      lock.unlock();
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<torch::Tensor> ready_;
  bool done_ = false;
  std::vector<std::thread> threads_;
};

// ---- One run, in its own process

double status_mib(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::stod(line.substr(field.size() + 1)) / 1024;
  }
  return 0;
}

int64_t minor_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

double ms_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double, std::milli>(b - a).count();
}

double process_cpu_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

void run_child(const Options& options) {
  setting_named(options.settings.at(0)).inside();
  at::set_num_threads(options.threads);
  lockstep::tuning::set_blas_threads(options.threads);
  torch::manual_seed(0);

  auto work = models().at(options.model).second();
  torch::optim::Adam optimizer(work.net->parameters(), 1e-3);
  std::mt19937 random(1);
  std::uniform_int_distribution<int> rows(1, 2 * work.batch);
  auto loaders = options.loaders > 0 ? std::make_unique<Loaders>(options.loaders) : nullptr;

  std::vector<double> step_ms, cpu_ms, optimizer_ms;
  int64_t faults_before = 0;
  auto fixed = work.data(work.batch);
  for (int step = 0; step < options.warmup + options.steps; ++step) {
    if (step == options.warmup) faults_before = minor_faults();
    const double cpu_begin = process_cpu_ms();
    const auto begin = Clock::now();
    torch::Tensor images = loaders ? loaders->next() : torch::Tensor();
    auto [input, target] = options.vary_batch ? work.data(rows(random)) : fixed;
    optimizer.zero_grad();
    work.loss(work.net->forward(input), target).backward();
    const auto middle = Clock::now();
    optimizer.step();
    const auto end = Clock::now();
    if (step < options.warmup) continue;
    step_ms.push_back(ms_between(begin, end));
    cpu_ms.push_back(process_cpu_ms() - cpu_begin);
    optimizer_ms.push_back(ms_between(middle, end));
  }
  const auto faults = minor_faults() - faults_before;
  fmt::print("{}\n", nlohmann::json{{"step_ms", median(step_ms)},
                                    {"cpu_ms", median(cpu_ms)},
                                    {"optimizer_ms", median(optimizer_ms)},
                                    {"faults", static_cast<double>(faults) / options.steps},
                                    {"peak_mib", status_mib("VmHWM")},
                                    {"end_mib", status_mib("VmRSS")}}
                         .dump());
}

// ---- The table

nlohmann::json run_setting(const Options& options, const Setting& setting) {
  // popen takes one string. It contains only this program's path, numbers, and names checked against the
  // tables.
  std::string command = "env";
  for (const auto& [name, value] : setting.environment) command += fmt::format(" '{}={}'", name, value);
  command += fmt::format(
      " /proc/{}/exe --child --model {} --settings {} --steps {} --warmup {} --threads {} --loaders {}{}",
      ::getpid(), options.model, setting.name, options.steps, options.warmup, options.threads,
      options.loaders, options.vary_batch ? " --vary-batch" : "");
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot start " + command);
  std::string text;
  std::array<char, 4096> buffer;
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe))
    text.append(buffer.data(), got);
  if (::pclose(pipe) != 0) throw std::runtime_error("failed: " + command);
  return nlohmann::json::parse(text);
}

void run_table(const Options& options) {
  std::map<std::string, std::map<std::string, std::vector<double>>> cells;
  for (int alternation = 0; alternation < options.alternations; ++alternation) {
    for (const auto& name : options.settings) {
      const auto result = run_setting(options, setting_named(name));
      for (const auto& [key, value] : result.items()) {
        cells[name][key].push_back(value);
      }
    }
  }
  fmt::print("{}: {}; Adam; {} thread(s){}{}; {} steps, median of {} alternations\n", options.model,
             models().at(options.model).first, options.threads,
             options.vary_batch ? ", batch size varies" : "",
             options.loaders > 0 ? fmt::format(", {} loader thread(s)", options.loaders) : "", options.steps,
             options.alternations);
  fmt::print("| {:<15} | {:>8} | {:>8} | {:>8} | {:>8} | {:>11} | {:>8} | {:>7} |\n", "setting", "step ms",
             "of first", "CPU ms", "Adam ms", "faults/step", "peak MiB", "end MiB");
  fmt::print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  const auto& first = cells[options.settings[0]]["step_ms"];
  for (const auto& name : options.settings) {
    auto& row = cells[name];
    // Runs of one alternation are close in time, so other activity of the machine affects their ratio least.
    std::vector<double> ratios;
    for (size_t i = 0; i < first.size(); ++i) ratios.push_back(row["step_ms"][i] / first[i]);
    fmt::print("| {:<15} | {:>8.1f} | {:>7.0f}% | {:>8.1f} | {:>8.1f} | {:>11.0f} | {:>8.0f} | {:>7.0f} |\n",
               name, median(row["step_ms"]), 100 * median(ratios), median(row["cpu_ms"]),
               median(row["optimizer_ms"]), median(row["faults"]), median(row["peak_mib"]),
               median(row["end_mib"]));
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (const char* name : {"default", "threshold", "no-mmap", "lockstep", "lockstep-run"}) {
    options.settings.emplace_back(name);
  }
  CLI::App app("Measures a training step under several settings of the C library's heap");
  app.add_option("--model", options.model, "mlp, wide, cnn or transformer")
      ->check(CLI::IsMember({"mlp", "wide", "cnn", "transformer"}))
      ->capture_default_str();
  std::string known;
  std::vector<std::string> names;
  for (const auto& setting : settings()) {
    names.push_back(setting.name);
    known += fmt::format("\n{:>40}: {}", setting.name, setting.meaning);
  }
  app.add_option("--settings", options.settings, "settings to compare; the first is the reference" + known)
      ->delimiter(',')
      ->check(CLI::IsMember(names));
  app.add_option("--steps", options.steps, "measured steps per run")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--warmup", options.warmup, "steps before that, which do not count")->capture_default_str();
  app.add_option("--alternations", options.alternations, "runs per setting")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "compute threads")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--loaders", options.loaders, "data-loader threads that allocate at the same time")
      ->capture_default_str();
  app.add_flag("--vary-batch", options.vary_batch, "use another batch size at every step");
  app.add_flag("--child", options.child)->group("");
  CLI11_PARSE(app, argc, argv);
  try {
    options.child ? run_child(options) : run_table(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_heap: {}\n", error.what());
    return 1;
  }
}
