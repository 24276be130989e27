// `lockstep plan`
#include <cstdio>
#include <fmt/format.h>
#include <unistd.h>
#include <variant>

#include <lockstep/error.h>

#include "cli/commands.h"
#include "cli/plan/options.h"
#include "cli/plan/output.h"
#include "plan/bench_rows.h"
#include "plan/constants.h"

namespace lockstep::cli {

namespace {

std::string output_of(const PlanOptions& options) {
  const auto constants =
      options.constants.empty() ? plan::builtin_constants() : plan::fit(plan::read_bench(options.constants));
  if (options.table) {
    return options.json ? plan_table_json(constants, options.job) : plan_table_text(constants, options.job);
  }
  if (options.json) return plan_json(constants, options.job);
  return plan_text(constants, options.job, ::isatty(STDOUT_FILENO) == 1);
}

}  // namespace

int plan(const std::vector<std::string>& arguments) {
  try {
    const auto parsed = parse_plan_options(arguments);
    if (const auto* help = std::get_if<PlanHelp>(&parsed)) {
      fmt::print("{}", help->text);
      return 0;
    }
    fmt::print("{}", output_of(std::get<PlanOptions>(parsed)));
    return 0;
  } catch (const UsageError& error) {
    fmt::print(stderr, "lockstep plan: {}\n", error.what());
    return kUsage;
  }
}

}  // namespace lockstep::cli
