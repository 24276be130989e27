// The inside of a process group.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

#include <lockstep/c10d.h>
#include <lockstep/process_group.h>

#include "base/aside.h"
#include "comm/agreement.h"
#include "comm/interrupter.h"
#include "comm/key_store.h"
#include "comm/machines.h"
#include "comm/native.h"

namespace lockstep {

namespace comm {

inline void destroy_aside(c10::intrusive_ptr<c10d_backend> backend) {
  base::run_aside([backend = std::move(backend)]() mutable { backend.reset(); });
}

}  // namespace comm

struct ProcessGroup::Impl {
  using Native = comm::Native;

  ~Impl() {
    // A forked child has neither the backend's threads, for which its destructor waits, nor a part in the
    // store.
    if (::getpid() != made_by) {
      c10d.release();
      static_cast<void>(messages.release());
      static_cast<void>(agreement.release());
      return;
    }
    if (store) store->forget(store_holders);
    if (!poison || native != nullptr || !c10d) return;
    if (agreement) agreement->hang_up(*c10d);
    // Gloo's destructor waits for its calls, and some may wait for ranks that have ended.
    comm::destroy_aside(std::move(c10d));
  }

  const pid_t made_by = ::getpid();
  std::string name;     // for messages: "the default group", "group 2 of ranks 0, 3"
  std::string backend;  // "shm", "gloo"; "single" in a world of one
  int rank = 0;
  int world_size = 1;
  comm::Placement placement;
  std::chrono::milliseconds timeout{};

  // The rest is empty in a world of one.
  std::vector<comm::RankFacts> ranks;
  std::optional<comm::PeerWatch> watch;
  comm::KeyStorePtr store;  // of this group's own
  int store_holders = 0;    // how many ranks say that they have no more use for it
  // On a backend that does not compare the ranks' calls by itself.
  std::unique_ptr<comm::Agreement> agreement;
  // Made when it is first asked for in a world of one, which needs none.
  mutable c10::intrusive_ptr<c10d_backend> c10d;
  Native* native = nullptr;  // the same object, when it is one of ours

  std::atomic<uint64_t> calls{0};  // numbers the collectives; the same on all ranks
  int subgroups = 0;
  // The sends and receives that are waited for.
  std::unique_ptr<comm::Interrupter> messages = std::make_unique<comm::Interrupter>();

  // The first error, which every later call repeats.
  mutable std::mutex poison_mutex;
  struct Poison {
    std::string kind;
    std::string message;
    std::vector<int> culprits;
  };
  std::optional<Poison> poison;
};

}  // namespace lockstep
