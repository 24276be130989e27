// The results of a run as JSON, for demo_report and for other programs that plot them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <torch/version.h>

#include <lockstep/lockstep.h>

namespace fashion_mnist {

struct Epoch {
  int64_t number = 0;   // from 1
  double seconds = 0;   // of training, without evaluation
  double loss = 0;      // mean over the epoch
  double accuracy = 0;  // on the test images, after the epoch
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Epoch, number, seconds, loss, accuracy)

struct Record {
  std::string command;
  int world_size = 1;
  int threads = 1;  // of each rank
  std::string backend;
  int64_t parameters = 0;
  int64_t batch = 0;    // of all ranks together
  int64_t samples = 0;  // per epoch
  std::vector<Epoch> epochs;
  double cpu_seconds = 0;           // CPU time of rank 0 while training; less than `seconds` on a shared core
  std::vector<double> losses;       // of every step, averaged over the ranks
  lockstep::DdpStats stats;         // rank 0's, at the end
  lockstep::DdpStats typical_pass;  // rank 0's, of the pass with the median time in the last epoch
  std::vector<std::string> replicas;  // each rank's digest of its parameters
  std::string snapshot;               // empty: none
};

inline nlohmann::json to_json(const lockstep::DdpStats& stats) {
  auto buckets = nlohmann::json::array();
  for (const auto& bucket : stats.buckets) {
    buckets.push_back({{"bytes", bucket.bytes},
                       {"parameters", bucket.parameters},
                       {"ready", bucket.ready},
                       {"launched", bucket.launched},
                       {"finished", bucket.finished}});
  }
  return {{"steps", stats.steps},
          {"backward", stats.backward},
          {"communication", stats.communication},
          {"exposed", stats.exposed},
          {"total_communication", stats.total_communication},
          {"total_exposed", stats.total_exposed},
          {"buckets", buckets}};
}

inline void write(const Record& record, const std::filesystem::path& path) {
  const nlohmann::json json = {
      {"program", "fashion_mnist"},        {"libtorch", TORCH_VERSION},
      {"command", record.command},         {"world_size", record.world_size},
      {"threads", record.threads},         {"backend", record.backend},
      {"parameters", record.parameters},   {"batch", record.batch},
      {"samples", record.samples},         {"epochs", record.epochs},
      {"cpu_seconds", record.cpu_seconds}, {"losses", record.losses},
      {"stats", to_json(record.stats)},    {"typical_pass", to_json(record.typical_pass)},
      {"replicas", record.replicas},       {"snapshot", record.snapshot}};
  std::ofstream file(path);
  file << json.dump(1) << '\n';
  if (!file.flush()) throw lockstep::SystemError("cannot write " + path.string());
}

}  // namespace fashion_mnist
