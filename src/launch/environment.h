// The environment variables of a worker, with torchrun's names. No side effects.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::launch {

using Variables = std::vector<std::pair<std::string, std::string>>;

// The position of a worker in its job.
struct Place {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int nnodes = 1;
  std::string master_addr = "127.0.0.1";
  uint16_t master_port = 0;
  int attempt = 0;  // 0 for the first start
  int max_restarts = 0;
  std::string run_id = "none";
};

Variables variables_of(const Place& place);

// `inherited` ("NAME=value" each) plus `variables`, which replace those of the same name.
std::vector<std::string> merge(const std::vector<std::string>& inherited, const Variables& variables);

// The environment of this process.
std::vector<std::string> own_environment();

}  // namespace lockstep::launch
