#include "cli/bench/table.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fstream>
#include <optional>
#include <set>
#include <sys/utsname.h>
#include <tuple>

#include <torch/version.h>

#include "base/host.h"
#include "tuning/topology.h"

#ifndef LOCKSTEP_VERSION
#define LOCKSTEP_VERSION "unknown"
#endif

namespace lockstep::bench {

namespace {

// The speed relative to Gloo; nullopt if Gloo was not measured for the same row.
std::optional<double> times_gloo(const Row& row, const std::vector<Row>& rows) {
  for (const auto& other : rows) {
    const bool same = other.world == row.world && other.plan.collective == row.plan.collective &&
                      other.plan.size == row.plan.size && other.dtype == row.dtype;
    if (same && other.backend == "gloo" && other.refused.empty() && row.refused.empty() &&
        row.time.p50_us > 0)
      return other.time.p50_us / row.time.p50_us;
  }
  return std::nullopt;
}

// About three significant digits.
std::string number_text(double number) {
  return fmt::format("{:.{}f}", number, number < 0.1 ? 4 : number < 10 ? 2 : number < 100 ? 1 : 0);
}

using Cells = std::array<std::string, 12>;

Cells cells_of(const Row& row, const std::vector<Row>& rows) {
  const bool barrier = row.plan.collective == Collective::Barrier;
  Cells cells{facts_of(row.plan.collective).name,
              fmt::format("{}", row.world),
              barrier ? "-" : size_text(row.bytes),
              barrier ? "-" : row.dtype,
              row.backend,
              barrier ? "-" : row.memory,
              "-",
              "-",
              "-",
              "-",
              row.refused.empty() ? (row.wrong.empty() ? "ok" : "WRONG") : "refused",
              "-"};
  if (!row.refused.empty()) return cells;
  cells[6] = number_text(row.time.p50_us);
  cells[7] = number_text(row.time.p99_us);
  if (!barrier) {
    cells[8] = number_text(row.algorithm_gb_s());
    cells[9] = number_text(row.bus_gb_s());
  }
  if (const auto times = times_gloo(row, rows)) cells[11] = number_text(*times);
  return cells;
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

Json machine() {
  utsname kernel{};
  ::uname(&kernel);
  const auto topology = tuning::read_topology(tuning::affinity_of());
  return {{"host", base::host_name()},
          {"cpu", cpu_model()},
          {"cores", topology.cores()},
          {"usable_cores", topology.usable_cores()},
          {"kernel", fmt::format("{} {} {}", kernel.sysname, kernel.release, kernel.machine)}};
}

}  // namespace

bool Result::any_wrong() const {
  return std::any_of(rows.begin(), rows.end(), [](const Row& row) { return !row.wrong.empty(); });
}

bool Result::any_measured() const {
  return std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.refused.empty(); });
}

void sort_rows(std::vector<Row>& rows) {
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return std::tuple(a.plan.collective, a.world, a.plan.size) <
           std::tuple(b.plan.collective, b.world, b.plan.size);
  });
}

std::string table_of(const Result& result) {
  const Cells head{"collective", "ranks",  "bytes",    "dtype",    "backend", "memory",
                   "p50 µs",     "p99 µs", "alg GB/s", "bus GB/s", "data",    "x gloo"};
  std::vector<Cells> lines{head};
  for (const auto& row : result.rows) lines.push_back(cells_of(row, result.rows));
  // µ takes two bytes but one column.
  const auto width_of = [](const std::string& text) {
    return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
  };
  std::array<long, std::tuple_size_v<Cells>> widths{};
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max<long>(widths[i], width_of(line[i]));
  }
  const std::set<size_t> left{0, 3, 4, 5, 10};
  std::string out, before;
  for (const auto& line : lines) {
    if (!out.empty() && line[0] != before) out += '\n';
    before = line[0];
    std::string text;
    for (size_t i = 0; i < line.size(); ++i) {
      const std::string gap(static_cast<size_t>(widths[i] - width_of(line[i])), ' ');
      text += (i == 0 ? "" : "  ") + (left.contains(i) ? line[i] + gap : gap + line[i]);
    }
    out += text + "\n";
  }
  std::set<std::string> remarks;
  for (const auto& row : result.rows) {
    const auto where = fmt::format("{}, {} ranks, {} {}, {} {}", facts_of(row.plan.collective).name,
                                   row.world, size_text(row.bytes), row.dtype, row.backend, row.memory);
    if (!row.wrong.empty()) remarks.insert(fmt::format("WRONG: {}: {}", where, row.wrong));
    if (!row.refused.empty()) remarks.insert(fmt::format("refused by {}: {}", row.backend, row.refused));
  }
  for (const auto& remark : remarks) out += remark + "\n";
  return out;
}

std::string json_of(const Result& result) {
  Json json;
  json["machine"] = machine();
  json["versions"] = {{"lockstep", LOCKSTEP_VERSION}, {"libtorch", TORCH_VERSION}, {"compiler", __VERSION__}};
  json["command"] = result.command;
  json["unavailable"] = Json::object();
  for (const auto& [backend, why] : result.unavailable) json["unavailable"][backend] = why;
  json["errors"] = result.errors;
  json["rows"] = Json::array();
  for (const auto& row : result.rows) {
    auto entry = row_to_json(row);
    const auto times = times_gloo(row, result.rows);
    entry["times_gloo"] = times ? Json(*times) : Json(nullptr);
    json["rows"].push_back(std::move(entry));
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::bench
