#include "plan/constants.h"

#include <algorithm>
#include <fmt/format.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "plan/units.h"

namespace lockstep::plan {

namespace {

constexpr double kSmallBytes = 4096;      // of a call whose time does not depend on its size
constexpr double kBeyondCaches = 0x1p27;  // the buffers of all ranks together

[[noreturn]] void refuse_rows(const std::string& missing) {
  throw UsageError(base::compose({.what = "the constants cannot be derived from these measurements",
                                  .evidence = "missing: " + missing,
                                  .hint = fmt::format("measure again: {}", kBenchCommand)}));
}

// The rows of one collective and backend, by world and size. For shared memory, those of registered tensors,
// which gradients are.
std::vector<BenchRow> rows_of(const BenchRun& run, const std::string& collective,
                              const std::string& backend) {
  std::vector<BenchRow> rows;
  for (const auto& row : run.rows) {
    const bool in_place = backend != "shm" || row.memory == "registered";
    if (row.collective == collective && row.backend == backend && in_place) rows.push_back(row);
  }
  std::sort(rows.begin(), rows.end(), [](const BenchRow& a, const BenchRow& b) {
    return a.world != b.world ? a.world < b.world : a.bytes < b.bytes;
  });
  return rows;
}

std::vector<BenchRow> small_rows(std::vector<BenchRow> rows) {
  // A few bytes have fewer elements than there are ranks: Gloo then sends fewer messages.
  std::erase_if(rows,
                [](const BenchRow& row) { return row.bytes > kSmallBytes || row.bytes < 4.0 * row.world; });
  return rows;
}

// The largest row of each world.
std::vector<BenchRow> large_rows(const std::vector<BenchRow>& rows) {
  std::vector<BenchRow> large;
  for (const auto& row : rows) {
    if (row.bytes * row.world < kBeyondCaches) continue;
    if (!large.empty() && large.back().world == row.world) large.pop_back();
    large.push_back(row);
  }
  return large;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

class Fit {
 public:
  explicit Fit(const BenchRun& run) : run_(run) {}

  // An all-reduce reads and writes the buffers of all ranks once.
  void shared_memory(Constants& out) const {
    const auto rows = rows_of(run_, "all_reduce", "shm");
    const auto large = large_rows(rows), small = small_rows(rows);
    if (large.empty()) {
      refuse_rows(fmt::format(
          "all_reduce over shared memory with buffers of {} or more in total, too large for caches",
          bytes_text(kBeyondCaches)));
    }
    if (small.empty()) refuse_rows("all_reduce over shared memory of 1 KiB");
    const auto rate = [](const BenchRow& row) { return 2 * row.world * row.bytes / row.seconds; };
    out.core_bytes_per_s = rate(large.front()) / busy_cores(large.front());
    for (const auto& row : large) out.machine_bytes_per_s = std::max(out.machine_bytes_per_s, rate(row));

    const auto& few = small.front();
    const auto& many = small.back();
    const double crowd = many.world - run_.cores;
    out.local_call_s = few.seconds;
    out.crowded_call_s = builtin_constants().crowded_call_s;
    if (crowd > 0 && many.seconds > few.seconds) out.crowded_call_s = (many.seconds - few.seconds) / crowd;
  }

  // A ring among W ranks: each sends 2 (W - 1) messages, each after the one that it received, with 2 (W - 1)
  // / W of the bytes. An all-to-all: W - 1 messages at once. With more ranks than cores, the ranks take
  // turns.
  void network(Constants& out) const {
    const auto rows = rows_of(run_, "all_reduce", "gloo");
    const auto large = large_rows(rows), small = small_rows(rows);
    const auto exchanges = small_rows(rows_of(run_, "all_to_all_single", "gloo"));
    if (small.empty()) refuse_rows("all_reduce over Gloo of 1 KiB");
    if (large.empty()) {
      refuse_rows(
          fmt::format("all_reduce over Gloo with buffers of {} or more in total", bytes_text(kBeyondCaches)));
    }
    if (exchanges.empty()) refuse_rows("all_to_all_single over Gloo of 1 KiB");

    std::vector<double> trips, per_byte;
    for (const auto& row : small) trips.push_back(cpu_s(row) / (2 * (row.world - 1)));
    out.trip_s = median(trips);
    for (const auto& row : large) {
      const double messages = 2 * (row.world - 1);
      const double bytes = messages / row.world * row.bytes;
      per_byte.push_back(std::max(0.0, cpu_s(row) - messages * out.trip_s) / bytes);
    }
    out.network_s_per_byte = median(per_byte);

    // What a call costs whatever the number of its messages counts least among the most ranks.
    const auto& most = exchanges.back();
    out.message_s = std::min(cpu_s(most) / (most.world - 1), out.trip_s);
  }

 private:
  double busy_cores(const BenchRow& row) const { return std::min(row.world, run_.cores); }
  // The CPU time of each rank, if those that share a core take turns.
  double cpu_s(const BenchRow& row) const { return row.seconds * busy_cores(row) / row.world; }

  const BenchRun& run_;
};

}  // namespace

Constants builtin_constants() {
  return {.source = "built-in, measured on 2 cores of an AMD EPYC",
          .core_bytes_per_s = 42e9,
          .machine_bytes_per_s = 83e9,
          .local_call_s = 0.2e-6,
          .crowded_call_s = 10e-6,
          .trip_s = 66e-6,
          .message_s = 53e-6,
          .network_s_per_byte = 0.3e-9};
}

Constants fit(const BenchRun& run) {
  Constants constants{.source = fmt::format("measured on {} cores of {}", run.cores, run.cpu)};
  const Fit fitted(run);
  fitted.shared_memory(constants);
  fitted.network(constants);
  return constants;
}

}  // namespace lockstep::plan
