#include "cli/bench/row.h"

#include <algorithm>

namespace lockstep::bench {

Json row_to_json(const Row& row) {
  Json json = {{"world", row.world},     {"collective", facts_of(row.plan.collective).name},
               {"size", row.plan.size},  {"bytes", row.bytes},
               {"dtype", row.dtype},     {"op", reduces(row.plan.collective) ? Json(row.op) : Json(nullptr)},
               {"backend", row.backend}, {"memory", row.memory}};
  if (!row.refused.empty()) {
    json["data"] = "refused";
    json["refused"] = row.refused;
    return json;
  }
  json["data"] = row.wrong.empty() ? "ok" : "WRONG";
  if (!row.wrong.empty()) json["wrong"] = row.wrong;
  json.update({{"samples", row.samples},
               {"calls_per_sample", row.calls_per_sample},
               {"p50_us", row.time.p50_us},
               {"p99_us", row.time.p99_us},
               {"min_us", row.time.min_us},
               {"mean_us", row.time.mean_us},
               {"algorithm_gb_s", row.algorithm_gb_s()},
               {"bus_gb_s", row.bus_gb_s()}});
  return json;
}

Row row_from_json(const Json& json) {
  const auto name = json.at("collective").get<std::string>();
  const auto* facts = std::find_if(kCollectives.begin(), kCollectives.end(),
                                   [&](const CollectiveFacts& entry) { return name == entry.name; });
  Row row;
  row.world = json.at("world");
  row.plan = {facts->id, json.at("size").get<int64_t>()};
  row.bytes = json.at("bytes");
  row.dtype = json.at("dtype");
  row.op = json.at("op").is_null() ? "" : json.at("op").get<std::string>();
  row.backend = json.at("backend");
  row.memory = json.at("memory");
  row.refused = json.value("refused", "");
  row.wrong = json.value("wrong", "");
  row.samples = json.value("samples", 0);
  row.calls_per_sample = json.value("calls_per_sample", 1);
  row.time = {json.value("p50_us", 0.0), json.value("p99_us", 0.0), json.value("min_us", 0.0),
              json.value("mean_us", 0.0)};
  return row;
}

}  // namespace lockstep::bench
