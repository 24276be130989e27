// A run of fashion_mnist, read from the JSON that it wrote.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace demo {

struct Epoch {
  double seconds = 0, loss = 0, accuracy = 0;
};

// Times are in seconds from the first gradient of the pass.
struct Bucket {
  int64_t bytes = 0;
  std::vector<std::string> parameters;
  double ready = 0, launched = 0, finished = 0;
};

struct Pass {
  double backward = 0, communication = 0, exposed = 0;
  std::vector<Bucket> buckets;
};

struct Run {
  std::string command, backend, libtorch, snapshot;
  int world_size = 1, threads = 1;
  int64_t parameters = 0, batch = 0, samples = 0;
  std::vector<Epoch> epochs;
  std::vector<double> losses;
  double cpu_seconds = 0;  // CPU time of rank 0 while training
  double total_communication = 0, total_exposed = 0;
  Pass typical_pass;
  std::vector<std::string> replicas;

  double seconds() const;        // of training
  double rate() const;           // images per second
  double exposed_share() const;  // of the training time
  double communication_share() const;
  // Whether other programs used its cores for a considerable part of the time. A single process waits for no
  // other rank, so it should have had at least one core all the time. For several ranks this cannot be
  // determined, because they wait for each other.
  bool disturbed() const;
  bool identical() const;    // all replicas have the same digest
  std::string name() const;  // "2 processes, 1 thread each"
  std::string full_command() const;
};

// The first disturbed run, or null.
const Run* disturbed_one(const std::vector<Run>& runs);

// The speed relative to the first run: "1.93". Empty if any run was disturbed, because ratios of such times
// are meaningless.
std::string speed_up(const std::vector<Run>& runs, const Run& run);

// Throws a std::runtime_error that names the file if it is not such a run, or if the run trained nothing.
Run read_run(const std::filesystem::path& path);

}  // namespace demo
