// The ranks of a job find each other in the store: every rank claims its number and says who it is, and goes
// on when all have done so.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "rendezvous/key_store.h"
#include "rendezvous/machines.h"

namespace lockstep::rendezvous {

// Returns the facts of all ranks, by rank. Throws MismatchError when two processes claim one rank or the
// world sizes differ, on every rank that is there; PeerLostError when one ends before it has come;
// TimeoutError naming the ranks that are missing. `store` must be fresh for this meeting.
std::vector<RankFacts> meet(KeyStore& store, const RankFacts& mine, base::Deadline deadline);

// Every rank says something and hears what all say, by rank. `heard` is called as each arrives; what it
// throws ends the exchange for everybody. Throws TimeoutError naming the ranks that are missing. `store` must
// be fresh, as above.
using Heard = std::function<void(int rank, const std::string& said)>;
std::vector<std::string> exchange(KeyStore& store, int rank, int world_size, const std::string& said,
                                  base::Deadline deadline, const Heard& heard = {});

// Rank 0, whose process may host the store, returns only when every rank has come here (or the deadline is
// over): nobody needs the store after that. The others return at once.
void leave(KeyStore& store, int rank, int world_size, base::Deadline deadline);

}  // namespace lockstep::rendezvous
