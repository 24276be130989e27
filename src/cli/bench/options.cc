#include "cli/bench/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/error.h>

#include "base/env.h"
#include "base/error_text.h"
#include "cli/bench/values.h"
#include "cli/flags.h"

namespace lockstep::bench {

namespace {

using base::compose;
using cli::refuse;
using cli::whole_number;

constexpr int64_t kMostBytes = int64_t{8} << 30;

constexpr const char* kExamples = R"(
Examples:
  lockstep bench
  lockstep bench --world 2,4 --collective all_reduce,broadcast --sizes 8,1K,256K,25M --json rows.json
  lockstep bench --collective all_reduce --min 1K --max 64M --factor 4 --dtype float,bfloat16 --seconds 1
  lockstep run --nnodes 2 --node-rank 0 --master-addr node0 --nproc-per-node 4 lockstep bench    # and on node 1

The variants of a row take turns, so that noise affects all of them. Times are those of the slowest rank, per call.
Bandwidth: bytes / time (alg), and that times nccl-tests' factor (bus: 2(n-1)/n for all_reduce, (n-1)/n where the bytes
are divided among the ranks, otherwise 1). The last column is the speed relative to Gloo.
The exit status is 1 if received data was wrong, if nothing could be measured, or if a backend given with --backend is
not available.
)";

// The flags as text. interpret() parses them, so that the error messages are ours and not CLI11's.
struct Raw {
  std::string world = "2", backend = "shm,hybrid,gloo", collective = "all", sizes, min, max, factor;
  std::string dtype = "float", op = "sum", memory = "registered,plain";
  std::string iterations, warmup = "5", seconds, json;
  bool quiet = false;
};

std::vector<std::string> split(const std::string& flag, const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find(',', begin), text.size());
    auto part = text.substr(begin, end - begin);
    if (part.empty()) refuse(flag, text, "a part of the list is empty");
    if (std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(std::move(part));
    begin = end + 1;
  }
  return parts;
}

int64_t parse_size(const std::string& flag, const std::string& text) {
  constexpr std::string_view kUnits = "KMG";
  auto digits = text;
  int64_t unit = 1;
  const auto at = text.empty()
                      ? std::string_view::npos
                      : kUnits.find(static_cast<char>(std::toupper(static_cast<unsigned char>(text.back()))));
  if (at != std::string_view::npos) {
    unit = int64_t{1} << (10 * (at + 1));
    digits.pop_back();
  }
  const auto number = base::parse_int(digits);
  if (number && *number > 0 && *number <= kMostBytes / unit) return *number * unit;
  refuse(flag, text, "a size is a number of bytes from 1 to 8G", "write 8, 1K, 256K, 25M (1K is 1024)");
}

std::vector<int64_t> parse_sizes(const Raw& raw) {
  const bool range = !raw.min.empty() || !raw.max.empty() || !raw.factor.empty();
  if (range && !raw.sizes.empty()) {
    throw UsageError(compose({.what = "--sizes and --min/--max/--factor contradict each other",
                              .hint = "give a list or a range"}));
  }
  std::vector<int64_t> sizes;
  if (range) {
    const auto low = parse_size("--min", raw.min.empty() ? "8" : raw.min);
    const auto high = parse_size("--max", raw.max.empty() ? "64M" : raw.max);
    const auto factor = whole_number("--factor", raw.factor.empty() ? "4" : raw.factor, 2, 1 << 20);
    if (low > high) refuse("--min", raw.min, fmt::format("it is larger than --max, {}", size_text(high)));
    for (int64_t size = low; size <= high; size *= factor) sizes.push_back(size);
  } else {
    for (const auto& text : split("--sizes", raw.sizes.empty() ? "8,1K,256K,4M,25M" : raw.sizes)) {
      sizes.push_back(parse_size("--sizes", text));
    }
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

// The elements of `table` whose names are in the list. `name` returns the name of an element.
template <class Table, class Name>
auto choose(const std::string& flag, const std::string& text, const Table& table, Name&& name) {
  std::vector<std::string> known;
  for (const auto& entry : table) known.emplace_back(name(entry));
  std::vector<typename Table::value_type> chosen;
  for (const auto& word : split(flag, text)) {
    chosen.push_back(table[cli::position_of(flag, word, known)]);
  }
  return chosen;
}

std::vector<std::string> choose_names(const std::string& flag, const std::string& text,
                                      const std::vector<std::string>& known) {
  return choose(flag, text, known, [](const std::string& name) { return name; });
}

double parse_seconds(const std::string& text) {
  try {
    size_t used = 0;
    const double number = std::stod(text, &used);
    if (used == text.size() && number > 0 && number <= 3600) return number;
  } catch (const std::exception&) {
  }
  refuse("--seconds", text, "it must be a number of seconds, above 0 and up to 3600");
}

Options interpret(const Raw& raw) {
  Options options;
  options.worlds.clear();
  for (const auto& text : split("--world", raw.world)) {
    options.worlds.push_back(static_cast<int>(whole_number("--world", text, 2, kMostRanks)));
  }
  options.backends = choose_names("--backend", raw.backend, {"shm", "hybrid", "gloo"});
  options.memories = choose_names("--memory", raw.memory, {"registered", "plain"});
  if (raw.collective == "all") {
    for (const auto& facts : kCollectives) options.collectives.push_back(facts.id);
  } else {
    for (const auto& facts : choose("--collective", raw.collective, kCollectives,
                                    [](const CollectiveFacts& entry) { return entry.name; })) {
      options.collectives.push_back(facts.id);
    }
  }
  options.sizes = parse_sizes(raw);
  options.dtypes = choose("--dtype", raw.dtype, kDtypes, [](const Dtype& entry) { return entry.name; });
  const auto operations = choose_names("--op", raw.op, {kOperations.begin(), kOperations.end()});
  if (operations.size() != 1) refuse("--op", raw.op, "only one operation can be measured at a time");
  options.op = operations.front();
  if (!raw.iterations.empty() && !raw.seconds.empty()) {
    throw UsageError(compose({.what = "--iterations and --seconds contradict each other",
                              .hint = "give a number of samples or a time"}));
  }
  if (!raw.iterations.empty()) {
    options.iterations = static_cast<int>(whole_number("--iterations", raw.iterations, 1, 1'000'000));
  }
  if (!raw.seconds.empty()) options.seconds = parse_seconds(raw.seconds);
  options.warmup = static_cast<int>(whole_number("--warmup", raw.warmup, 0, 1'000'000));
  options.json = raw.json;
  options.quiet = raw.quiet;
  return options;
}

}  // namespace

std::vector<RowPlan> plan_rows(const Options& options) {
  std::vector<RowPlan> rows;
  for (const auto collective : options.collectives) {
    if (collective == Collective::Barrier) {
      rows.push_back({collective, 0});
      continue;
    }
    for (const auto size : options.sizes) rows.push_back({collective, size});
  }
  return rows;
}

std::string size_text(int64_t bytes) {
  const std::array units = {"", "K", "M", "G"};
  size_t unit = 0;
  for (; bytes != 0 && bytes % 1024 == 0 && unit + 1 < units.size(); ++unit) bytes /= 1024;
  return fmt::format("{}{}", bytes, units[unit]);
}

std::variant<Options, HelpText> parse_options(const std::vector<std::string>& words,
                                              const std::string& program) {
  Raw raw;
  std::vector<std::string> names;
  for (const auto& facts : kCollectives) names.emplace_back(facts.name);
  std::vector<std::string> dtypes;
  for (const auto& dtype : kDtypes) dtypes.emplace_back(dtype.name);

  CLI::App app(
      "Measures the collectives between processes of this machine, and checks the data of every row.",
      program);
  app.set_help_flag("-h,--help", "show this help and exit");
  app.get_formatter()->column_width(27);
  app.allow_extras();  // refuse_extra() has the better error message
  app.footer(kExamples);
  const auto value = [&](const char* name, std::string& target, const char* type, const std::string& help) {
    app.add_option(name, target, help)
        ->type_name(type)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  };
  value("--world", raw.world, "N,...", "numbers of processes (default 2); under a launcher, its own");
  value("--backend", raw.backend, "NAME,...", "shm, hybrid, gloo (default: those that are available)");
  value(
      "--collective", raw.collective, "NAME,...",
      fmt::format("all (default), or some of these:\n{}", fmt::join(names.begin(), names.begin() + 5, ", ")) +
          fmt::format(",\n{}", fmt::join(names.begin() + 5, names.end(), ", ")));
  value("--sizes", raw.sizes, "BYTES,...", "sizes of the rows (default 8,1K,256K,4M,25M)");
  value("--min", raw.min, "BYTES", "instead of a list: the smallest size (default 8),");
  value("--max", raw.max, "BYTES", "the largest size (default 64M),");
  value("--factor", raw.factor, "N", "and the factor between sizes (default 4)");
  value("--dtype", raw.dtype, "NAME,...", fmt::format("{} (default float)", fmt::join(dtypes, ", ")));
  value("--op", raw.op, "NAME", fmt::format("{} (default sum)", fmt::join(kOperations, ", ")));
  value("--memory", raw.memory, "KIND,...",
        "registered (ProcessGroup::empty), plain (ordinary tensors);\ndefault both; Gloo has only plain");
  value("--seconds", raw.seconds, "S", "time spent on each variant of a row (default 0.2)");
  value("--iterations", raw.iterations, "N", "instead of --seconds: samples of each variant");
  value("--warmup", raw.warmup, "N", "samples before the measurement (default 5)");
  value("--json", raw.json, "FILE", "also write the results as JSON; - for stdout, without the table");
  app.add_flag("--quiet", raw.quiet, "no progress on stderr");
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::CallForHelp&) {
    return HelpText{app.help()};
  } catch (const CLI::ParseError& error) {
    throw UsageError(
        compose({.what = error.what(), .hint = fmt::format("{} --help shows all flags", program)}));
  }
  if (!app.remaining().empty()) cli::refuse_extra(app, program);
  auto options = interpret(raw);
  options.backends_named = app.get_option("--backend")->count() > 0;
  return options;
}

}  // namespace lockstep::bench
