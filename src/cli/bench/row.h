// One row of the results: the time of one variant for one collective at one size. `lockstep bench` and its
// peers write the same JSON. Without LibTorch.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/bench/options.h"
#include "cli/bench/rules.h"

namespace lockstep::bench {

using Json = nlohmann::ordered_json;

struct Row {
  int world = 0;
  RowPlan plan{};
  int64_t bytes = 0;  // the size, adjusted to whole elements
  std::string dtype, op, backend, memory;
  std::string wrong;    // the error in the data; empty if there is none
  std::string refused;  // why the backend refused the call; empty if it did not. A refused row has no times
  int samples = 0;
  int calls_per_sample = 1;
  Summary time;

  double algorithm_gb_s() const {
    return time.p50_us > 0 ? static_cast<double>(bytes) / time.p50_us / 1e3 : 0;
  }
  double bus_gb_s() const { return algorithm_gb_s() * bus_factor(plan.collective, world); }
};

Json row_to_json(const Row& row);
Row row_from_json(const Json& json);

}  // namespace lockstep::bench
