#include "cli/bench/command.h"

#include <cerrno>
#include <cstdio>
#include <fmt/format.h>
#include <fstream>
#include <sstream>
#include <sys/mman.h>
#include <unistd.h>
#include <variant>

#include <lockstep/error.h>
#include <lockstep/spawn.h>

#include "base/error_text.h"
#include "base/fd.h"
#include "cli/bench/measure.h"
#include "cli/bench/options.h"
#include "cli/bench/table.h"
#include "cli/commands.h"
#include "rendezvous/identity.h"

namespace lockstep::cli {

namespace {

using bench::Json;
using bench::Options;
using bench::Result;

// The results of rank 0, one line each, in a memory file. Unlike a pipe it has no small limit and needs no
// reader, and the parent can read what was written even if a rank fails later.
class Findings {
 public:
  Findings() : file_(::memfd_create("lockstep-bench", MFD_CLOEXEC)) {
    if (!file_) fail();
  }
  void add(const Json& finding) const {
    const auto line = finding.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    for (size_t done = 0; done < line.size();) {
      const auto written = ::write(file_.get(), line.data() + done, line.size() - done);
      if (written < 0 && errno != EINTR) fail();
      if (written > 0) done += static_cast<size_t>(written);
    }
  }
  void add_to(Result& result) const {
    std::istringstream lines(read_all());
    for (std::string line; std::getline(lines, line);) {
      const auto json = Json::parse(line);
      if (json.contains("row")) {
        result.rows.push_back(bench::row_from_json(json["row"]));
      } else {
        result.unavailable[json["unavailable"]] = json["why"];
      }
    }
  }

 private:
  [[noreturn]] static void fail() {
    throw SystemError(
        base::compose({.what = "cannot store the results in memory", .evidence = base::errno_text(errno)}));
  }
  std::string read_all() const {
    std::string text;
    char bytes[65536];
    for (;;) {
      const auto got = ::pread(file_.get(), bytes, sizeof bytes, static_cast<off_t>(text.size()));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail();
      if (got == 0) return text;
      text.append(bytes, static_cast<size_t>(got));
    }
  }

  base::Fd file_;
};

// Starts the ranks.
Result measure(const Options& options) {
  Result result;
  const int rows = static_cast<int>(bench::plan_rows(options).size());
  const bench::Progress progress(rows * static_cast<int>(options.worlds.size()), options.quiet);
  int rows_before = 0;
  for (const int world : options.worlds) {
    const Findings findings;
    try {
      spawn(world, [&](int rank) {
        bench::measure_world(options, rank, rows_before, progress,
                             [&](const Json& finding) { findings.add(finding); });
      });
    } catch (const Error& error) {
      result.errors.push_back(fmt::format("{} ranks: {}", world, error.what()));
    }
    findings.add_to(result);
    rows_before += rows;
  }
  progress.end();
  bench::sort_rows(result.rows);
  return result;
}

// Measures the ranks that a launcher has started, of which this process is one. Only rank 0 gets the results.
Result measure_job(Options options, int rank, int world) {
  options.worlds = {world};
  const bench::Progress progress(static_cast<int>(bench::plan_rows(options).size()),
                                 options.quiet || rank != 0);
  const Findings findings;
  bench::measure_world(options, rank, 0, progress, [&](const Json& finding) { findings.add(finding); });
  progress.end();
  Result result;
  findings.add_to(result);
  bench::sort_rows(result.rows);
  return result;
}

std::ofstream open_json(const std::string& path, std::ios::openmode mode) {
  std::ofstream file(path, mode);
  if (!file) {
    throw SystemError(base::compose({.what = fmt::format("cannot write {}", path),
                                     .evidence = base::errno_text(errno),
                                     .hint = "give --json a path that can be written"}));
  }
  return file;
}

void publish(const Options& options, const Result& result) {
  if (options.json == "-") {
    fmt::print("{}", bench::json_of(result));
    return;
  }
  if (!result.rows.empty()) fmt::print("{}", bench::table_of(result));
  if (options.json.empty()) return;
  auto file = open_json(options.json, std::ios::trunc);
  file << bench::json_of(result) << std::flush;
  if (!file) throw SystemError(base::compose({.what = fmt::format("cannot write all of {}", options.json)}));
}

int run_bench(const Options& options, const std::vector<std::string>& words) {
  const auto identity = rendezvous::identify(rendezvous::NeedMaster::No);
  const bool launched = identity.world_size > 1;
  if (launched && identity.rank != 0) {
    measure_job(options, identity.rank, identity.world_size);
    return 0;
  }
  const bool to_file = !options.json.empty() && options.json != "-";
  if (to_file) open_json(options.json, std::ios::app);  // fail now rather than after the measurement
  auto result = launched ? measure_job(options, 0, identity.world_size) : measure(options);
  result.command = {"lockstep", "bench"};
  result.command.insert(result.command.end(), words.begin(), words.end());
  publish(options, result);
  for (const auto& [backend, why] : result.unavailable) {
    fmt::print(stderr, "lockstep bench: {} is skipped: {}\n", backend, why);
  }
  for (const auto& error : result.errors) fmt::print(stderr, "lockstep bench: {}\n", error);
  if (!result.any_measured()) fmt::print(stderr, "lockstep bench: nothing could be measured\n");
  if (result.any_wrong()) fmt::print(stderr, "lockstep bench: data arrived WRONG\n");
  const bool missing = options.backends_named && !result.unavailable.empty();
  return result.any_measured() && !result.any_wrong() && result.errors.empty() && !missing ? 0 : 1;
}

}  // namespace

int bench(const std::vector<std::string>& words) {
  try {
    const auto parsed = bench::parse_options(words);
    if (const auto* help = std::get_if<bench::HelpText>(&parsed)) {
      fmt::print("{}", help->text);
      return 0;
    }
    return run_bench(std::get<Options>(parsed), words);
  } catch (const UsageError& error) {
    fmt::print(stderr, "lockstep bench: {}\n", error.what());
    return kUsage;
  } catch (const Error& error) {
    fmt::print(stderr, "lockstep bench: {}\n", error.what());
    return 1;
  }
}

}  // namespace lockstep::cli
