// The workers of this node: starts, signals and reaps them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/token.h"
#include "launch/children.h"
#include "launch/environment.h"
#include "launch/membership.h"
#include "launch/options.h"
#include "launch/output.h"
#include "launch/signals.h"
#include "launch/verdict.h"
#include "launch/worker.h"
#include "tuning/plan.h"

namespace lockstep::launch {

class Gang {
 public:
  Gang(const RunOptions& options, const Signals& signals, Output& output);

  // Starts all workers of an attempt and calls `meanwhile` after each. Throws CannotStart or SystemError
  // after killing the workers that it had started.
  void start(const Membership& membership, const std::string& path, int attempt,
             const std::function<void()>& meanwhile);

  bool empty() const { return workers_.empty(); }
  std::vector<int> running_ranks() const { return workers_.running_ranks(); }
  // Signals the process group of each worker, because a worker may be a script that started the program.
  void signal_groups(int signal);
  // Signals each worker alone: other processes of its group may not handle SIGUSR1, which would end them.
  void signal_workers(int signal) { workers_.signal_leaders(signal); }
  // The ends of the workers that have ended since the last call, including those that succeeded. Also reaps
  // children, without blocking.
  std::vector<RankEnd> take_ended();
  // When there is something to reap, although no child ends.
  const std::optional<base::Deadline>& reap_at() const { return reap_at_; }

 private:
  WorkerSpec spec_for(const Membership& membership, const std::string& path, int local_rank,
                      int attempt) const;

  const RunOptions& options_;
  base::Token token_;
  const Signals& signals_;
  Output& output_;
  std::vector<std::string> inherited_;  // environment
  tuning::Switches switches_;
  tuning::Topology topology_;
  Children workers_;
  std::optional<base::Deadline> reap_at_;
};

// Creates the folder of the log files and checks that it is writable. Throws SystemError.
void prepare_log_dir(const std::string& path);

}  // namespace lockstep::launch
