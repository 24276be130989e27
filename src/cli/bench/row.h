// One line of the result: what one variant needed for one collective at one size. As JSON it is the same for
// `lockstep bench` and its peers. No LibTorch.
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
  int64_t bytes = 0;  // what the size came to in whole elements
  std::string dtype, op, backend, memory;
  std::string wrong;    // what was wrong with the data; empty: nothing
  std::string refused;  // why the backend does not do it; empty: it does. Then there are no times
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
