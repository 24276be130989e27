#include "support/run_ranks.h"

#include <algorithm>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <iostream>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/port.h"
#include "store/client.h"

namespace lockstep::testing {

namespace {

using namespace std::chrono_literals;

struct Child {
  int rank;
  pid_t pid;
  base::Fd output;
  bool running = true;
  RankOutcome outcome = {};
};

void set_environment(int rank, int world, uint16_t port, const Start& start) {
  Environment environment = {
      {"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(world)},
      {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(world)},
      {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(port)}};
  if (start.environment) {
    for (const auto& [name, value] : start.environment(rank)) environment[name] = value;
  }
  for (const auto& [name, value] : environment) {
    value.empty() ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value.c_str(), 1);
  }
}

int run_body(int rank, const std::function<void(int)>& body) {
  bool thrown = false;
  // A thread of its own: if the parent has used OpenMP, the pool that its main thread remembers is not in
  // this process.
  std::thread([&] {
    try {
      body(rank);
    } catch (const Error& error) {
      thrown = true;
      std::cout << error.kind() << ": " << error.what() << std::endl;
    } catch (const std::exception& error) {
      thrown = true;
      std::cout << "std::exception: " << error.what() << std::endl;
    }
  }).join();
  std::cout.flush();
  std::fflush(nullptr);
  return thrown || ::testing::Test::HasFailure() ? 1 : 0;
}

Child fork_rank(int rank, int world, uint16_t port, pid_t group, const std::function<void(int)>& body,
                const Start& start) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  base::Fd reading(ends[0]), writing(ends[1]);
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("fork failed");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(99);
    ::setpgid(0, group);
    ::dup2(writing.get(), STDOUT_FILENO);
    ::dup2(writing.get(), STDERR_FILENO);
    set_environment(rank, world, port, start);
    const int status = run_body(rank, body);
    if (status == 0)
      store::Client::say_goodbye();  // as exit(0) does, which would run the parent's handlers, too
    ::_exit(status);
  }
  ::setpgid(pid, group == 0 ? pid : group);
  ::fcntl(reading.get(), F_SETFL, O_NONBLOCK);
  return {.rank = rank, .pid = pid, .output = std::move(reading)};
}

void drain(Child& child) {
  char buffer[4096];
  ssize_t count = 0;
  while ((count = ::read(child.output.get(), buffer, sizeof buffer)) > 0) {
    child.outcome.output.append(buffer, static_cast<size_t>(count));
  }
}

void reap(Child& child) {
  int status = 0;
  if (!child.running || ::waitpid(child.pid, &status, WNOHANG) != child.pid) return;
  child.running = false;
  if (WIFEXITED(status)) child.outcome.exit_status = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) child.outcome.signal = WTERMSIG(status);
}

bool any_running(const std::vector<Child>& children) {
  return std::any_of(children.begin(), children.end(), [](const Child& child) { return child.running; });
}

// A stopped process does not end by itself; when only such are left there is nothing to wait for.
bool is_stopped(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  const auto name_end = line.rfind(") ");
  return name_end != std::string::npos && line[name_end + 2] == 'T';
}

bool only_stopped_left(const std::vector<Child>& children) {
  return std::all_of(children.begin(), children.end(),
                     [](const Child& child) { return !child.running || is_stopped(child.pid); });
}

void wait_for(std::vector<Child>& children, base::Deadline deadline) {
  while (any_running(children) && !only_stopped_left(children) && !deadline.expired()) {
    std::vector<pollfd> polled;
    for (const auto& child : children) polled.push_back({child.output.get(), POLLIN, 0});
    ::poll(polled.data(), polled.size(), 20);
    for (auto& child : children) {
      drain(child);
      reap(child);
    }
  }
}

}  // namespace

std::string RankOutcome::describe() const {
  std::string how = hung          ? "hung and was killed"
                    : signal != 0 ? fmt::format("was killed by signal {}", signal)
                                  : fmt::format("exited with status {}", exit_status);
  return fmt::format("rank {} {}; its output:\n{}", rank, how, output);
}

void let_own_threads_end() {
  const auto one_of_ours = [](const std::filesystem::directory_entry& task) {
    std::ifstream file(task.path() / "comm");
    std::string name;
    std::getline(file, name);
    return name.starts_with("lockstep-");
  };
  for (const auto deadline = base::Deadline::in(5s); !deadline.expired(); std::this_thread::sleep_for(1ms)) {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    if (std::none_of(begin(tasks), end(tasks), one_of_ours)) return;
  }
}

namespace {

// This process is already one of the ranks: runs the body as that one.
RankOutcome join_ranks(int world, const std::function<void(int)>& body, const Start& start) {
  const auto number = [](const char* variable) {
    const char* const value = std::getenv(variable);
    return value == nullptr ? -1 : std::atoi(value);
  };
  RankOutcome outcome{.rank = number("OMPI_COMM_WORLD_RANK")};
  EXPECT_EQ(world, number("OMPI_COMM_WORLD_SIZE")) << "this test needs another number of ranks";
  if (world != number("OMPI_COMM_WORLD_SIZE")) return outcome;
  set_environment(outcome.rank, world, static_cast<uint16_t>(number("MASTER_PORT")), start);
  outcome.exit_status = run_body(outcome.rank, body);
  destroy_process_group();
  return outcome;
}

}  // namespace

std::vector<RankOutcome> start_ranks(int world, const std::function<void(int)>& body, const Start& start) {
  if (std::getenv("LOCKSTEP_TEST_JOINS") != nullptr) return {join_ranks(world, body, start)};
  let_own_threads_end();
  const base::PortReservation port(base::Reach::ThisMachine);
  std::vector<Child> children;
  for (int rank = 0; rank < world; ++rank) {
    const pid_t group = children.empty() ? 0 : children.front().pid;
    children.push_back(fork_rank(rank, world, port.port(), group, body, start));
  }
  wait_for(children, base::Deadline::in(start.deadline));
  for (auto& child : children) {
    if (!child.running) continue;
    child.outcome.hung = true;
    ::kill(child.pid, SIGKILL);
  }
  wait_for(children, base::Deadline::in(5s));

  std::vector<RankOutcome> outcomes;
  for (auto& child : children) {
    drain(child);
    child.outcome.rank = child.rank;
    EXPECT_FALSE(child.running) << "rank " << child.rank << " cannot be ended";
    outcomes.push_back(std::move(child.outcome));
  }
  if (!children.empty()) {
    // All ranks and what they start are in one process group, unless they leave it on purpose.
    const bool left_over = ::kill(-children.front().pid, 0) == 0;
    EXPECT_FALSE(left_over) << "processes are left over";
    if (left_over) ::kill(-children.front().pid, SIGKILL);
  }
  return outcomes;
}

void expect_success(const std::vector<RankOutcome>& outcomes) {
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.exit_status, 0) << outcome.describe();
}

std::function<Environment(int)> on_machines(const std::string& letters) {
  return [letters](int rank) -> Environment {
    return {{"LOCKSTEP_MACHINE", std::string(1, letters.at(rank))}};
  };
}

std::string name_of_backend(const std::string& backend) { return backend.substr(0, backend.find(':')); }

std::function<Environment(int)> environment_for(const std::string& backend, int world) {
  const auto name = name_of_backend(backend);
  if (name != "hybrid") return {};
  return on_machines(name == backend ? std::string((world + 1) / 2, 'a') + std::string(world / 2, 'b')
                                     : backend.substr(name.size() + 1));
}

void run_ranks(int world, const std::string& backend, const std::function<void(ProcessGroup&)>& body,
               std::chrono::seconds deadline) {
  expect_success(start_ranks(world,
                             [&](int) {
                               const auto group =
                                   init_process_group({.backend = name_of_backend(backend), .timeout = 20s});
                               body(*group);
                             },
                             {.deadline = deadline, .environment = environment_for(backend, world)}));
}

void Fault::reach(int rank, int step) const {
  if (rank == rank_ && step == step_) ::raise(signal_);
}

}  // namespace lockstep::testing
