// Measures the speed of this machine's memory when all processes of a world copy at once: the reference for
// collectives over shared memory.
//
//   bench_memory_limit --world 2 --bytes 26214400
//
// Each process copies from one private buffer to another with memcpy. All start together, and the time of a
// pass is that of its slowest process. Reads and writes count: a pass moves 2 × world × bytes.
//
// With any algorithm, an in-place all_reduce must read all `world` buffers and write all of them: with 2
// ranks, each reads its half of both and writes its half of both. That is the traffic of one such pass over
// buffers of the same size. The all_reduce can be faster than the pass, because it writes to memory that it
// has just read, while a copy must fetch its target or bypass the caches.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fmt/format.h>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "base/deadline.h"
#include "tuning/plan.h"

namespace {

using lockstep::base::Deadline;

constexpr int kMostWorkers = 127;
constexpr int kMostPasses = 1000;
constexpr auto kPatience = std::chrono::seconds(120);

struct Options {
  int world = 2;
  int64_t bytes = 25 << 20;
  int passes = 20;
};

// In memory that all processes share.
struct Board {
  std::atomic<int> arrived{0};
  std::atomic<int> failed{0};
  double pass_us[kMostWorkers][kMostPasses] = {};
};

// Waits for all processes. Spins, so that all start the next pass at the same moment; yields, because there
// may be fewer cores than processes. Returns false if the others do not arrive.
bool meet(Board& board, int expected, Deadline deadline) {
  board.arrived.fetch_add(1);
  while (board.arrived.load() < expected) {
    if (board.failed.load() != 0 || deadline.expired()) return false;
    ::sched_yield();
  }
  return true;
}

bool work(const Options& options, int worker, Board& board) {
  // Binds it as `lockstep bench` binds the rank of the same number.
  const auto plan = lockstep::tuning::plan_for(worker, options.world, {});
  lockstep::tuning::bind_this_thread(plan.cpus);
  const auto size = static_cast<size_t>(options.bytes);
  const auto from = std::make_unique<char[]>(size), to = std::make_unique<char[]>(size);
  const auto deadline = Deadline::in(kPatience);
  constexpr int kWarmup = 2;
  for (int pass = -kWarmup; pass < options.passes; ++pass) {
    from[0] = static_cast<char>(pass);
    if (!meet(board, options.world * (pass + kWarmup + 1), deadline)) return false;
    const auto begin = std::chrono::steady_clock::now();
    std::memcpy(to.get(), from.get(), size);
    const auto end = std::chrono::steady_clock::now();
    // Reads the copy, so that the compiler cannot remove it.
    if (to[0] != from[0] || to[size - 1] != from[size - 1]) return false;
    if (pass >= 0) {
      board.pass_us[worker][pass] = std::chrono::duration<double, std::micro>(end - begin).count();
    }
  }
  return true;
}

double median_pass_us(const Options& options, const Board& board) {
  std::vector<double> slowest;
  for (int pass = 0; pass < options.passes; ++pass) {
    double time = 0;
    for (int worker = 0; worker < options.world; ++worker) time = std::max(time, board.pass_us[worker][pass]);
    slowest.push_back(time);
  }
  std::sort(slowest.begin(), slowest.end());
  return slowest[slowest.size() / 2];
}

// Returns whether all workers completed all passes.
bool run_workers(const Options& options, Board& board) {
  std::vector<pid_t> workers;
  const pid_t parent = ::getpid();
  for (int worker = 0; worker < options.world; ++worker) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      bool good = false;
      try {
        good = work(options, worker, board);
      } catch (const std::exception& error) {
        fmt::print(stderr, "bench_memory_limit: {}\n", error.what());
      }
      if (!good) board.failed = 1;
      ::_exit(good ? 0 : 1);
    }
    if (pid < 0) {
      fmt::print(stderr, "bench_memory_limit: cannot fork: {}\n", std::strerror(errno));
      board.failed = 1;
      break;
    }
    workers.push_back(pid);
  }
  bool good = board.failed == 0;
  for (const pid_t pid : workers) {
    int status = 0;
    good = ::waitpid(pid, &status, 0) == pid && status == 0 && good;
    if (!good) board.failed = 1;
  }
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Measures how fast all processes of a world together can copy memory");
  app.add_option("--world", options.world, "number of processes")
      ->check(CLI::Range(1, kMostWorkers))
      ->capture_default_str();
  app.add_option("--bytes", options.bytes, "size of a buffer")
      ->check(CLI::Range(int64_t{1}, int64_t{8} << 30))
      ->capture_default_str();
  app.add_option("--passes", options.passes, "number of timed copies")
      ->check(CLI::Range(1, kMostPasses))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  void* const shared =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) {
    fmt::print(stderr, "bench_memory_limit: cannot map memory: {}\n", std::strerror(errno));
    return 1;
  }
  auto& board = *new (shared) Board;
  if (!run_workers(options, board)) {
    fmt::print(stderr, "bench_memory_limit: a process failed\n");
    return 1;
  }
  const double pass_us = median_pass_us(options, board);
  const double moved = 2.0 * options.world * static_cast<double>(options.bytes);
  fmt::print("{}\n", nlohmann::ordered_json{{"world", options.world},
                                            {"bytes", options.bytes},
                                            {"passes", options.passes},
                                            {"p50_us", pass_us},
                                            {"rate_gb_s", moved / pass_us / 1e3}}
                         .dump());
}
