#include "cli/plan/options.h"

#include <CLI/CLI.hpp>
#include <array>
#include <fmt/format.h>
#include <optional>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "cli/flags.h"
#include "plan/constants.h"
#include "plan/predict.h"
#include "plan/units.h"

namespace lockstep::cli {

namespace {

constexpr const char* kProgram = "lockstep plan";
constexpr double kMostParameters = 1e13;
constexpr int kMostMachines = 1 << 16, kMostRanks = 1 << 12;

std::string examples() {
  return fmt::format(R"(
Examples:
  lockstep plan --params 1e9 --step-ms 300 --nodes 64 --ranks-per-node 8 --link 25Gbit --rtt 50us
  lockstep plan --params 350M --step-ms 800 --nodes 4 --link 1Gbit --wire bf16
  lockstep plan --params 1e9 --step-ms 300 --ranks-per-node 8 --link 25Gbit --table

--step-ms: measure a step on one rank, or under no_sync() on as many ranks as a machine will have.
The constants of your machines: run there
  {}
and give --constants FILE. docs/scaling.md explains the model.
)",
                     plan::kBenchCommand);
}

// The flags as text. interpret() parses them, so that the error messages are ours and not CLI11's.
struct RawPlan {
  std::string params, step_ms, backward_share = "0.667", tensors = "0";
  std::string dtype = "float", optimizer = "adam", wire;
  std::string nodes = "1", ranks_per_node = "1", cores, spare_cores = "0";
  std::string link, rtt = "100us";
  std::string bucket_mb, first_bucket_mb = "1";
  std::string constants;
  bool table = false, json = false;
};

[[noreturn]] void require(const std::string& flag, const std::string& example) {
  throw UsageError(base::compose({.what = flag + " is missing", .hint = "such as " + example}));
}

double number_in(const std::string& flag, const std::string& text, double low, double high,
                 const char* unit) {
  const auto number = plan::parse_number(text);
  if (number && *number >= low && *number <= high) return *number;
  refuse(flag, text, fmt::format("it must be a number{} from {:g} to {:g}", unit, low, high));
}

// The bytes of an element.
double element_bytes(const std::string& flag, const std::string& text) {
  static constexpr std::array kBytes{4.0, 2.0};
  return kBytes[position_of(flag, text, {"float", "bf16"})];
}

plan::Optimizer optimizer_of(const std::string& text) {
  // In the order of the enumeration.
  return static_cast<plan::Optimizer>(position_of("--optimizer", text, {"sgd", "momentum", "adam"}));
}

double parameters_of(const std::string& text) {
  if (text.empty()) require("--params", "--params 350M");
  const auto count = plan::parse_count(text);
  if (count && *count >= 1 && *count <= kMostParameters) return *count;
  refuse("--params", text, "a number of parameters is from 1 to 1e13", "write 1e9, 350M or 7B");
}

double link_of(const std::string& text) {
  const auto rate = plan::parse_bits_per_s(text);
  if (rate && *rate >= 1e3) return *rate;
  refuse("--link", text, "the speed of a link needs a unit, and is at least 1kbit",
         "write 25Gbit, 100Mbit or 3GB/s");
}

double rtt_of(const std::string& text) {
  const auto seconds = plan::parse_seconds(text);
  if (seconds && *seconds <= 10) return *seconds;
  refuse("--rtt", text, "the round-trip time needs a unit, and is at most 10s", "write 50us or 0.2ms");
}

void read_machines(const RawPlan& raw, plan::Job& job) {
  job.machines = static_cast<int>(whole_number("--nodes", raw.nodes, 1, kMostMachines));
  job.ranks_per_machine =
      static_cast<int>(whole_number("--ranks-per-node", raw.ranks_per_node, 1, kMostRanks));
  if (!raw.cores.empty()) job.cores_per_machine = number_in("--cores", raw.cores, 0.01, 1e5, "");
  job.spare_cores_per_machine = number_in("--spare-cores", raw.spare_cores, 0, 1e5, "");
  if (job.spare_cores_per_machine > 0 && job.spare_cores_per_machine >= job.cores()) {
    refuse("--spare-cores", raw.spare_cores, fmt::format("a machine has {:g} cores in total", job.cores()),
           "give all of them with --cores");
  }
  if (!raw.link.empty()) job.link_bits_per_s = link_of(raw.link);
  job.rtt_s = rtt_of(raw.rtt);
  if (raw.link.empty() && (job.machines > 1 || raw.table)) require("--link", "--link 25Gbit");
}

PlanOptions interpret_plan(const RawPlan& raw) {
  PlanOptions options{.constants = raw.constants, .table = raw.table, .json = raw.json};
  auto& job = options.job;
  job.parameters = parameters_of(raw.params);
  if (raw.step_ms.empty()) require("--step-ms", "--step-ms 300");
  job.step_s = number_in("--step-ms", raw.step_ms, 0, 1e9, " of milliseconds") / 1e3;
  job.backward_share = number_in("--backward-share", raw.backward_share, 0, 1, "");
  job.tensors = static_cast<int>(whole_number("--tensors", raw.tensors, 0, 1'000'000));
  job.element_bytes = element_bytes("--dtype", raw.dtype);
  job.optimizer = optimizer_of(raw.optimizer);
  if (!raw.wire.empty()) job.wire_element_bytes = element_bytes("--wire", raw.wire);
  if (!raw.bucket_mb.empty()) {
    job.bucket_bytes = number_in("--bucket-mb", raw.bucket_mb, 0.001, 1e7, " of MiB") * plan::kMiB;
  }
  job.first_bucket_bytes =
      number_in("--first-bucket-mb", raw.first_bucket_mb, 0.001, 1e7, " of MiB") * plan::kMiB;
  read_machines(raw, job);
  const double bucket_bytes = plan::bucket_bytes_of(plan::Scheme::Hybrid, job);
  if (job.gradient_bytes() / bucket_bytes > plan::kMostBuckets) {
    refuse("--bucket-mb", fmt::format("{:g}", bucket_bytes / plan::kMiB),
           fmt::format("the model needs more than {:.0f} buckets", plan::kMostBuckets));
  }
  return options;
}

}  // namespace

std::variant<PlanOptions, PlanHelp> parse_plan_options(const std::vector<std::string>& words) {
  RawPlan raw;
  CLI::App app("Predicts the speed and the memory of a training job, and where they come from.", kProgram);
  app.set_help_flag("-h,--help", "show this help and exit");
  app.get_formatter()->column_width(29);
  app.allow_extras();  // refuse_extra() has the better error message
  app.footer(examples());
  const auto value = [&](const char* name, std::string& target, const char* type, const std::string& help) {
    app.add_option(name, target, help)
        ->type_name(type)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  };
  value("--params", raw.params, "N", "parameters of the model: 1e9, 350M, 7B");
  value("--step-ms", raw.step_ms, "MS", "a step of one rank without communication");
  value("--backward-share", raw.backward_share, "X", "of the step that is the backward pass (default 2/3)");
  value("--tensors", raw.tensors, "N", "parameter tensors of equal size (default: many small ones)");
  value("--dtype", raw.dtype, "NAME", "of parameters and gradients: float (default), bf16");
  value("--optimizer", raw.optimizer, "NAME", "sgd, momentum, adam (default)");
  value("--nodes", raw.nodes, "N", "machines (default 1)");
  value("--ranks-per-node", raw.ranks_per_node, "N", "ranks of a machine (default 1)");
  value("--cores", raw.cores, "N",
        "cores of a machine (default: one for each rank);\na fraction if machines share cores");
  value("--spare-cores", raw.spare_cores, "N", "of these, cores that the training leaves idle (default 0)");
  value("--link", raw.link, "RATE", "of a machine, in each direction: 25Gbit, 100Mbit");
  value("--rtt", raw.rtt, "TIME", "round trip between machines: 50us, 0.2ms (default 100us)");
  value("--bucket-mb", raw.bucket_mb, "MIB", "DdpOptions::bucket_cap_mb (default: its own)");
  value("--first-bucket-mb", raw.first_bucket_mb, "MIB", "DdpOptions::first_bucket_mb (default 1)");
  value("--wire", raw.wire, "NAME", "what a communication hook sends: bf16 (default: the gradients)");
  value("--constants", raw.constants, "FILE", "measured by lockstep bench (default: built-in)");
  app.add_flag("--table", raw.table, "instead of --nodes: 64 to 4,096 ranks");
  app.add_flag("--json", raw.json, "print JSON");
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::CallForHelp&) {
    return PlanHelp{app.help()};
  } catch (const CLI::ParseError& error) {
    throw UsageError(
        base::compose({.what = error.what(), .hint = fmt::format("{} --help shows all flags", kProgram)}));
  }
  if (!app.remaining().empty()) refuse_extra(app, kProgram);
  return interpret_plan(raw);
}

}  // namespace lockstep::cli
