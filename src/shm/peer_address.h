// The address of a rank: published in the store, read by the other ranks.
//
// As thread-safe as the store.
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

// Writes it to "shm/<rank>". Throws PeerLostError if the store does not answer.
void publish_address(c10d::Store& store, const PeerAddress& mine);

// The address that `other` has published, if it has. `asker` is this rank, for errors. Throws PeerLostError
// if the store does not answer; MismatchError if the other rank uses another layout version.
std::optional<PeerAddress> find_address(c10d::Store& store, int other, const rendezvous::RankFacts& asker);

}  // namespace lockstep::shm
