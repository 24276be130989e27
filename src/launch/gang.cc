#include "launch/gang.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fmt/format.h>
#include <iterator>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/error.h>

#include "base/env.h"
#include "base/error_text.h"
#include "base/host.h"
#include "launch/descendants.h"

namespace lockstep::launch {

namespace {

using namespace std::chrono_literals;

tuning::Switches switches_for(const RunOptions& options) {
  auto switches = tuning::switches_from_environment();
  if (!options.bind) switches.bind = false;
  if (!options.heap) switches.heap = false;
  if (options.threads) switches.threads = options.threads;
  return switches;
}

}  // namespace

Gang::Gang(const RunOptions& options, const Signals& signals, Output& output)
    : options_(options),
      token_(options.token.empty() && options.nnodes == 1 ? base::Token::random() : options.token),
      signals_(signals),
      output_(output),
      inherited_(own_environment()),
      switches_(switches_for(options)),
      topology_(tuning::read_topology(tuning::affinity_of())) {
  // Inherited from the process that started this one; workers get their own values.
  std::erase_if(inherited_, [](const auto& entry) {
    return entry.starts_with("LOCKSTEP_NOTE_FD=") || entry.starts_with("LOCKSTEP_TOKEN=") ||
           entry.starts_with("LOCKSTEP_TOKEN_FILE=");
  });
}

WorkerSpec Gang::spec_for(const Membership& membership, const std::string& path, int local_rank,
                          int attempt) const {
  Variables variables = variables_of({.rank = membership.first_rank() + local_rank,
                                      .world_size = membership.world_size(),
                                      .local_rank = local_rank,
                                      .local_world_size = membership.nproc(),
                                      .node_rank = membership.node_rank(),
                                      .nnodes = membership.nnodes(),
                                      .master_addr = membership.master_addr,
                                      .master_port = membership.master_port,
                                      .attempt = attempt,
                                      .max_restarts = membership.welcome.max_restarts,
                                      .run_id = options_.run_id});
  variables.emplace_back("LOCKSTEP_RUN", "1");
  if (!token_.empty()) variables.emplace_back("LOCKSTEP_TOKEN", token_.text());
  // Python buffers output to a pipe in large blocks otherwise, which are lost when the interpreter is killed.
  if (!base::env_string("PYTHONUNBUFFERED")) variables.emplace_back("PYTHONUNBUFFERED", "1");
  // init_process_group tunes the process, too, and must know what is switched off.
  if (!options_.bind) variables.emplace_back("LOCKSTEP_BIND", "0");
  if (!options_.heap) variables.emplace_back("LOCKSTEP_HEAP", "0");
  if (options_.threads) variables.emplace_back("LOCKSTEP_THREADS", std::to_string(*options_.threads));
  const auto plan = tuning::plan_on(topology_, local_rank, membership.nproc(), switches_);
  for (const auto& variable : tuning::environment_of(plan)) variables.push_back(variable);
  return {.path = path,
          .arguments = options_.command,
          .environment = merge(inherited_, variables),
          .cpus = plan.cpus};
}

void Gang::start(const Membership& membership, const std::string& path, int attempt,
                 const std::function<void()>& meanwhile) {
  std::vector<std::shared_ptr<RankLog>> logs(static_cast<size_t>(membership.nproc()));
  if (!options_.log_dir.empty()) {
    for (size_t i = 0; i < logs.size(); ++i) {
      logs[i] = std::make_shared<RankLog>(
          fmt::format("{}/rank_{}.log", options_.log_dir, membership.first_rank() + static_cast<int>(i)),
          attempt);
    }
  }
  try {
    for (int local_rank = 0; local_rank < membership.nproc(); ++local_rank) {
      auto worker = start_worker(spec_for(membership, path, local_rank, attempt), signals_);
      const int rank = membership.first_rank() + local_rank;
      const int tee = options_.log_dir.empty() ? 3 : options_.tee.of(local_rank);
      output_.attach(rank, std::move(worker.out), std::move(worker.err), tee,
                     logs[static_cast<size_t>(local_rank)]);
      workers_.add(
          {.rank = rank, .local_rank = local_rank, .pid = worker.pid, .note = std::move(worker.note)});
      meanwhile();
    }
  } catch (...) {
    workers_.clear();
    end_descendants(0ms);
    throw;
  }
}

void Gang::signal_groups(int signal) {
  workers_.signal_groups(signal);
  // A worker that is stopped (Ctrl-Z) has to continue before it can handle the signal.
  if (is_stop_signal(signal)) workers_.signal_groups(SIGCONT);
}

std::vector<RankEnd> Gang::take_ended() {
  auto ends = workers_.take_ended();
  // Without zombies of workers, which would be found again and again, the other children that have ended:
  // orphans of workers, which this process adopted as its subreaper.
  while (!(reap_at_ = workers_.reap())) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) break;
    auto more = workers_.take_ended();
    if (more.empty()) ::waitpid(info.si_pid, nullptr, WNOHANG);
    std::move(more.begin(), more.end(), std::back_inserter(ends));
  }
  for (auto& end : ends) end.host = base::host_name();
  return ends;
}

void prepare_log_dir(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error && ::access(path.c_str(), W_OK | X_OK) != 0) error.assign(errno, std::generic_category());
  if (!error && !std::filesystem::is_directory(path))
    error = std::make_error_code(std::errc::not_a_directory);
  if (error) {
    throw SystemError(base::compose({.what = fmt::format("cannot write log files to {}", path),
                                     .evidence = base::errno_text(error.value()),
                                     .hint = "choose another --log-dir"}));
  }
}

}  // namespace lockstep::launch
