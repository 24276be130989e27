// The command line of `lockstep plan`.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "plan/job.h"

namespace lockstep::cli {

struct PlanOptions {
  plan::Job job;
  std::string constants;  // path; empty: the built-in ones
  bool table = false;     // of 64 to 4096 ranks
  bool json = false;
};

struct PlanHelp {
  std::string text;
};
// Throws UsageError for invalid arguments.
std::variant<PlanOptions, PlanHelp> parse_plan_options(const std::vector<std::string>& words);

}  // namespace lockstep::cli
