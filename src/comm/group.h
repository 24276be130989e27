// The inside of a process group: one generation of it.
//
// A ProcessGroup is a handle, and what it points at is a generation: the ranks that have met, and the
// connections between them. Whoever holds the handle (DistributedDataParallel, SyncBatchNorm, Snapshots,
// DistributedSampler) follows it to another generation without being told (generation.h). What must outlive a
// generation belongs to the process: registered memory, above all.
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
    // A forked child has neither the transport's threads, for which its destructor may wait, nor a part in
    // the store.
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
  std::string backend;  // how the transport is called: "shm", "gloo"; "single" in a world of one
  int rank = 0;
  int world_size = 1;
  rendezvous::Placement placement;
  std::chrono::milliseconds timeout{};
  std::vector<rendezvous::RankFacts> ranks;

  // These two are empty in a world of one.
  std::optional<rendezvous::PeerWatch> watch;
  rendezvous::KeyStorePtr store;  // of this group's own
  int store_holders = 0;          // how many ranks must have no more use for it before it is erased

  comm::Returns blocking = comm::Returns::WhenComplete;  // how calls are described whose caller waits
  int subgroups = 0;

  // The first error, which every later call repeats.
  struct Failure {
    std::string kind;
    std::string message;
    std::vector<int> culprits;
  };
  std::atomic<bool> failed{false};  // set after `failure`
  mutable std::mutex failure_mutex;
  std::optional<Failure> failure;

  // The same ranks for code that speaks c10d: made when it is first asked for.
  std::function<c10::intrusive_ptr<c10d_backend>()> make_c10d;

  // Last: they refer to what is above.
  std::shared_ptr<comm::Transport> transport;  // of the data
  std::unique_ptr<comm::Control> control;      // of everything else

 private:
  static uint64_t next_generation() {
    static std::atomic<uint64_t> count{0};
    return ++count;
  }
};

}  // namespace lockstep
