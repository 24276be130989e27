// The inside of a process group.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <lockstep/c10d.h>
#include <lockstep/process_group.h>

#include "comm/machines.h"
#include "comm/native.h"

namespace lockstep {

struct ProcessGroup::Impl {
  using Native = comm::Native;

  std::string name;     // for messages: "the default group", "group 2 of ranks 0, 3"
  std::string backend;  // "shm", "gloo"; "single" in a world of one
  int rank = 0;
  int world_size = 1;
  comm::Placement placement;
  std::chrono::milliseconds timeout{};

  // The rest is empty in a world of one.
  std::vector<comm::RankFacts> ranks;
  std::optional<comm::PeerWatch> watch;
  c10::intrusive_ptr<c10d::Store> store;  // a PrefixStore of this group's own
  // Made when it is first asked for in a world of one, which needs none.
  mutable c10::intrusive_ptr<c10d_backend> c10d;
  Native* native = nullptr;  // the same object, when it is one of ours

  std::atomic<uint64_t> calls{0};  // numbers the collectives; the same on all ranks
  int subgroups = 0;

  // The first error, which every later call repeats.
  std::mutex poison_mutex;
  std::optional<std::pair<std::string, std::string>> poison;  // kind, message
};

}  // namespace lockstep
