// The ranks of a job meet in the store: every rank claims its number and publishes its facts, and continues
// when all ranks have done so.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "rendezvous/key_store.h"
#include "rendezvous/machines.h"

namespace lockstep::rendezvous {

// Blocks until all ranks have arrived, and returns their facts, by rank. Throws, on every rank that has
// arrived or arrives later, MismatchError if two processes claim one rank, or if the world sizes, backends or
// links differ; PeerLostError if a rank ends before it has arrived; TimeoutError with the missing ranks.
// `store` must contain no keys of another meeting.
std::vector<RankFacts> meet(KeyStore& store, const RankFacts& mine, base::Deadline deadline);

// Every rank publishes a text; blocks until all have, and returns the texts by rank. `heard` is called as
// each text arrives; if it throws, the exchange ends with that error on all ranks. Throws TimeoutError with
// the missing ranks. `store` must contain no keys of another meeting.
using Heard = std::function<void(int rank, const std::string& said)>;
std::vector<std::string> exchange(KeyStore& store, int rank, int world_size, const std::string& said,
                                  base::Deadline deadline, const Heard& heard = {});

// Every rank must call it. Rank 0, whose process may host the store, blocks until all ranks have called it
// (or the deadline has passed); after that, no rank needs the store. The others return immediately.
void leave(KeyStore& store, int rank, int world_size, base::Deadline deadline);

}  // namespace lockstep::rendezvous
