// The report that is printed when a rank has failed. No side effects.
#pragma once

#include <string>
#include <vector>

#include "launch/verdict.h"

namespace lockstep::launch {

struct ReportContext {
  int world_size = 1;
  bool several_nodes = false;
  int attempt = 0;
  int max_restarts = 0;
  std::vector<int> stopping;  // ranks of this node that are still running
  std::string log_dir;
};

std::string failure_report(const RankEnd& failure, const ReportContext& context);

}  // namespace lockstep::launch
