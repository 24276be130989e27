// Opens the key-value store in which the ranks of a job meet.
#pragma once

#include <string>

#include "base/deadline.h"
#include "rendezvous/identity.h"
#include "rendezvous/key_store.h"

namespace lockstep::rendezvous {

// Where the ranks meet: a port of rank 0 or of torchrun's agent, or a file. With the agent or a file, they
// only learn there where rank 0 has opened the store.
struct MeetingPoint {
  std::string host;
  uint16_t port = 0;
  std::string path;  // a file instead of host and port
  bool agent_hosts_store = false;
  // All ranks are on this machine, according to the launcher. The store then uses a Unix socket, whose name
  // contains the port.
  bool one_machine = false;

  std::string describe() const;
};

// Reads "env://", "tcp://host:port" or "file:///path". Throws UsageError.
MeetingPoint meeting_point(const std::string& init_method, const Identity& identity);

// Rank 0 opens the store and the others connect; blocks until that is done. A process keeps what it has
// opened: a second call for the same meeting point returns the same store.
KeyStorePtr open_store(const MeetingPoint& point, const Identity& identity, base::Deadline deadline);

}  // namespace lockstep::rendezvous
