// The options of `lockstep run`.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/token.h"

namespace lockstep::launch {

// torchrun's --tee: 0 nothing, 1 stdout, 2 stderr, 3 both; for all workers or by local rank.
struct Tee {
  int all = 3;
  std::map<int, int> by_local_rank;  // if not empty, 0 for the workers that are not listed

  int of(int local_rank) const {
    if (by_local_rank.empty()) return all;
    const auto found = by_local_rank.find(local_rank);
    return found != by_local_rank.end() ? found->second : 0;
  }
};

struct RunOptions {
  int nproc = 1;
  bool nproc_by_default = false;  // the user has not given a number
  int nnodes = 1;
  std::optional<int> node_rank;
  std::string address;  // of node 0; empty for a job of one node
  uint16_t port = 0;    // 0: choose a free port (one node only)
  std::string run_id = "none";
  int max_restarts = 0;
  std::string log_dir;  // empty: no log files
  Tee tee;
  std::chrono::milliseconds grace{};
  std::chrono::milliseconds timeout{};
  std::chrono::milliseconds node_timeout{};
  base::Token token;  // given by the user; empty if none was given
  bool bind = true;
  bool heap = true;
  std::optional<int> threads;
  std::vector<std::string> command;  // the program and its arguments
};

}  // namespace lockstep::launch
