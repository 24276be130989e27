// Connects ranks over TCP sockets of lockstep's own, for wires::Link.
#pragma once

#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "rendezvous/key_store.h"

namespace lockstep::wires {

// All of `ranks`, of which this process is `rank`, must call it; it blocks until they are connected.
// `address`: the local address at which the others reach this rank. Returns a non-blocking socket for each of
// `ranks`, in their order; none for this rank. Throws lockstep's errors.
//
// A connection is accepted only from a process that knows this rank's secret, which is in the job's store.
std::vector<base::Fd> connect(rendezvous::KeyStore& store, const std::vector<int>& ranks, int rank,
                              const std::string& address, base::Deadline deadline);

}  // namespace lockstep::wires
