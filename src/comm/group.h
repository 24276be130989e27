// The implementation of a process group: one generation of it.
//
// A ProcessGroup is a handle. It refers to a generation: the ranks that have met, and the connections between
// them. Owners of a handle (DistributedDataParallel, SyncBatchNorm, Snapshots, DistributedSampler) follow it
// to another generation without being notified (generation.h). What must outlive a generation, above all
// registered memory, belongs to the process.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

#include <c10/core/Device.h>

#include <lockstep/c10d.h>
#include <lockstep/process_group.h>

#include "comm/control.h"
#include "comm/transport.h"
#include "comm/work.h"
#include "rendezvous/key_store.h"
#include "rendezvous/machines.h"

namespace lockstep {

struct ProcessGroup::Impl {
  ~Impl() {
    // A forked child does not have the transport's threads, for which the destructor may wait, and is not a
    // member of the store.
    if (::getpid() != made_by) {
      static_cast<void>(control.release());
      new std::shared_ptr<comm::Transport>(std::move(transport));
      return;
    }
    if (store) store->forget(store_holders);
  }

  const pid_t made_by = ::getpid();
  const uint64_t generation = next_generation();
  std::string name;     // for messages: "the default group", "group 2 of ranks 0, 3"
  std::string backend;  // the name of the transport: "shm", "gloo+nccl"; "single" in a world of one
  int rank = 0;
  int world_size = 1;
  rendezvous::Placement placement;
  // The device of this rank besides the CPU; kCPU if there is none.
  c10::Device device = c10::kCPU;
  // Why the group cannot use CUDA tensors, and what to do about it; empty if it can.
  struct Why {
    std::string evidence, hint;
  };
  Why no_cuda;
  std::chrono::milliseconds timeout{};
  std::vector<rendezvous::RankFacts> ranks;

  // These two are empty if the world size is 1.
  std::optional<rendezvous::PeerWatch> watch;
  rendezvous::KeyStorePtr store;  // this group's part of the store
  int store_holders = 0;          // it is erased when this many ranks have released it

  comm::Returns blocking = comm::Returns::WhenComplete;  // how calls are described whose caller waits
  int subgroups = 0;
  std::string backend_of_subgroups;  // what their ranks choose from: like InitOptions::backend

  // The first error, which every later call throws again.
  struct Failure {
    std::string kind;
    std::string message;
    std::vector<int> culprits;
  };
  std::atomic<bool> failed{false};  // set after `failure`
  mutable std::mutex failure_mutex;
  std::optional<Failure> failure;

  // Returns a c10d backend of these ranks, for ProcessGroup::c10d(). `self` is this group: the backend may
  // be an owner of it.
  using Self = std::shared_ptr<Impl>;
  std::function<c10::intrusive_ptr<c10d_backend>(const Self& self)> make_c10d;

  // Last, because they refer to the members above.
  std::shared_ptr<comm::Transport> transport;  // for data
  std::unique_ptr<comm::Control> control;      // for everything else

 private:
  static uint64_t next_generation() {
    static std::atomic<uint64_t> count{0};
    return ++count;
  }
};

}  // namespace lockstep
