// The speed of a machine, as far as the model needs to know it, and how `lockstep bench` measures it.
#pragma once

#include <string>
#include <vector>

namespace lockstep::plan {

struct Constants {
  std::string source;  // where they come from, for people

  // Shared memory. Bytes that are read or written count once each.
  double core_bytes_per_s = 0;     // one core, reducing gradients that are in no cache
  double machine_bytes_per_s = 0;  // all cores of a machine together
  double local_call_s = 0;         // a collective of a few bytes among the ranks of a machine
  double crowded_call_s = 0;       // the same, for each rank beyond the number of cores

  // Gloo over TCP, in CPU time of a rank.
  double trip_s = 0;              // a message on which the next one depends: sending it and waking up for it
  double message_s = 0;           // a message among many that are on their way at once
  double network_s_per_byte = 0;  // to send a byte, and to receive one
};

// The constants of the machine on which lockstep is developed.
Constants builtin_constants();

// One row of `lockstep bench`: floats, summed or moved, without an error.
struct BenchRow {
  std::string collective, backend, memory;
  int world = 0;
  double bytes = 0;
  double seconds = 0;
};
struct BenchRun {
  std::string cpu;
  int cores = 0;  // that the ranks could use
  std::vector<BenchRow> rows;
};

// The command that measures what the fit needs.
inline constexpr const char* kBenchCommand =
    "lockstep bench --world 2,4,8 --collective all_reduce,all_to_all_single --sizes 1K,128M --json FILE";

// Fits the constants. Throws UsageError if rows are missing.
Constants fit(const BenchRun& run);

}  // namespace lockstep::plan
