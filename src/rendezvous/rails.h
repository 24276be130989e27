// The addresses at which the ranks of a group connect to each other across machines.
#pragma once

#include <vector>

#include "base/deadline.h"
#include "network/choose.h"
#include "rendezvous/key_store.h"
#include "rendezvous/machines.h"

namespace lockstep::rendezvous {

// The local addresses of a rank, one per rail (network/choose.h). All ranks of the group compute the same
// choice from the same facts, or throw the same UsageError or MismatchError.
network::Rails rails_of(int rank, const std::vector<RankFacts>& ranks);

// Checks that every machine of the group reaches every other one over each rail. All ranks of the group must
// call it, once for each store; it blocks until the result is known, for at most about half a minute after
// the last rank has called it. Throws, on all ranks, SystemError, which names both ends of a connection that
// failed; PeerLostError or TimeoutError if a rank does not take part.
//
// One rank of each machine connects to one rank of each other machine. Gloo will connect all ranks of the
// two, so the check costs less than what follows it. Both directions are tried: which side connects depends
// on the addresses, and firewalls distinguish directions.
void check_rails(KeyStore& store, int rank, const std::vector<RankFacts>& ranks, base::Deadline deadline);

}  // namespace lockstep::rendezvous
