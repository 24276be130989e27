#include "plan/bench_rows.h"

#include <cerrno>
#include <cmath>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "plan/units.h"

namespace lockstep::plan {

namespace {

using nlohmann::json;

// The output of a run with all collectives, sizes and worlds is smaller than 1 MB.
constexpr size_t kMostBytes = 64 << 20;

[[noreturn]] void refuse_bench(const std::string& name, const std::string& evidence) {
  throw UsageError(base::compose({.what = fmt::format("--constants {} cannot be used", name),
                                  .evidence = evidence,
                                  .hint = fmt::format("write it with: {}", kBenchCommand)}));
}

BenchRow row_of(const json& row) {
  BenchRow out{.collective = row.at("collective").get<std::string>(),
               .backend = row.at("backend").get<std::string>(),
               .memory = row.at("memory").get<std::string>(),
               .world = row.at("world").get<int>(),
               .bytes = row.at("bytes").get<double>(),
               .seconds = row.at("p50_us").get<double>() / 1e6};
  if (out.world < 2 || out.bytes < 0 || !std::isfinite(out.seconds) || out.seconds <= 0) {
    throw std::out_of_range(fmt::format("{} of {} B among {} ranks takes {} µs", out.collective, out.bytes,
                                        out.world, out.seconds * 1e6));
  }
  return out;
}

bool is_needed(const json& row) {
  const auto dtype = row.at("dtype").get<std::string>();
  const auto& op = row.at("op");
  return row.at("data").get<std::string>() == "ok" && dtype == "float" && (op.is_null() || op == "sum");
}

}  // namespace

BenchRun parse_bench(const std::string& text, const std::string& name) {
  const auto document = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) refuse_bench(name, "it is not JSON");
  if (!document.is_object() || !document.contains("machine") || !document.contains("rows")) {
    refuse_bench(name, "it is not the output of lockstep bench: it has no \"machine\" or no \"rows\"");
  }
  BenchRun run;
  try {
    const auto& machine = document.at("machine");
    run.cpu = machine.at("cpu").get<std::string>();
    run.cores = machine.at("usable_cores").get<int>();
    if (run.cores < 1) throw std::out_of_range(fmt::format("the machine has {} cores", run.cores));
    for (const auto& row : document.at("rows")) {
      if (is_needed(row)) run.rows.push_back(row_of(row));
    }
  } catch (const std::exception& error) {  // of nlohmann, or out_of_range
    refuse_bench(name, fmt::format("its contents are damaged: {}", error.what()));
  }
  return run;
}

BenchRun read_bench(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  if (file) {
    text.resize(kMostBytes + 1);
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(file.gcount()));
  }
  // A directory can be opened, but not read.
  if (!file.eof() && text.size() <= kMostBytes) refuse_bench(path, base::errno_text(errno));
  if (text.size() > kMostBytes) refuse_bench(path, "it is larger than " + bytes_text(kMostBytes));
  return parse_bench(text, path);
}

}  // namespace lockstep::plan
