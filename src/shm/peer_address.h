// What a rank writes into the store, so that the others find it, and how they read it there.
//
// Thread-safety: functions without state; as safe as the store.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <sys/types.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "rendezvous/machines.h"
#include "shm/segment.h"

namespace lockstep::shm {

struct PeerAddress {
  rendezvous::RankFacts facts;
  std::string socket_name;
  std::string token;
  uid_t user = 0;
  uint32_t layout_version = kLayoutVersion;
};

// Writes it under "shm/<rank>". Throws PeerLostError when the store is gone.
void publish_address(c10d::Store& store, const PeerAddress& mine);

// What `other` wrote; nothing when it has not yet. `asker` is this rank, for the errors. Throws PeerLostError
// when the store is gone; MismatchError when the other has another layout of the shared memory.
std::optional<PeerAddress> find_address(c10d::Store& store, int other, const rendezvous::RankFacts& asker);

}  // namespace lockstep::shm
