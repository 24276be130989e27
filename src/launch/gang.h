// The workers of this node: started together, signalled together, waited for.
#pragma once

#include <functional>
#include <string>
#include <vector>

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

  // Starts all workers of the attempt, and calls `meanwhile` after each. Throws CannotStart or SystemError;
  // whatever had been started has been killed then.
  void start(const Membership& membership, const std::string& path, int attempt,
             const std::function<void()>& meanwhile);

  bool empty() const { return workers_.empty(); }
  std::vector<int> running_ranks() const { return workers_.running_ranks(); }
  // To the whole process group of each worker: the program may have been started by a script.
  void signal_groups(int signal);
  // To the worker alone: its helpers would not know what to do with a SIGUSR1.
  void signal_workers(int signal) { workers_.signal_leaders(signal); }
  // Waits for all children that have ended, without blocking; returns how the workers among them ended, also
  // those that succeeded.
  std::vector<RankEnd> reap();

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
};

// Creates the folder of the log files and sees that it can be written to. Throws SystemError.
void prepare_log_dir(const std::string& path);

}  // namespace lockstep::launch
