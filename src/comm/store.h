// Opens the key-value store at which the ranks of a job meet.
#pragma once

#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/deadline.h"
#include "comm/environment.h"

namespace lockstep::comm {

// Where the ranks meet: a port of rank 0's (or of torchrun's agent), or a file.
struct MeetingPoint {
  std::string host;
  uint16_t port = 0;
  std::string path;  // a file instead of host and port
  bool agent_hosts_store = false;
  // Every rank is on this machine, as far as the launcher says: then the port is open on loopback only.
  bool one_machine = false;

  std::string describe() const;
};

// Reads "env://", "tcp://host:port" or "file:///path". Throws UsageError.
MeetingPoint meeting_point(const std::string& init_method, const Identity& identity);

// Rank 0 opens it, the others connect; blocks until that is done. A process keeps what it has opened, so that
// a second call for the same meeting point gives the same store.
c10::intrusive_ptr<c10d::Store> open_store(const MeetingPoint& point, const Identity& identity,
                                           base::Deadline deadline);

}  // namespace lockstep::comm
