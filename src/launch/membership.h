// How the agents of several nodes find each other: node 0 listens at the job's address and port, the others
// connect, and when all have arrived each knows its node rank and everybody's number of workers.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/port.h"
#include "base/token.h"
#include "launch/connection.h"
#include "launch/control.h"
#include "launch/lobby.h"

namespace lockstep::launch {

struct JoinRequest {
  int nnodes = 1;
  std::optional<int>
      node_rank;        // none: whoever can listen at the address is node 0, the others as they arrive
  std::string address;  // of node 0
  uint16_t port = 0;
  std::string run_id;
  int nproc = 1;
  int max_restarts = 0;  // node 0's counts
  std::chrono::milliseconds timeout{};
  std::chrono::milliseconds node_timeout{};  // node 0's counts
  std::chrono::milliseconds grace{};         // of this node's workers
  base::Token token;                         // empty: whoever comes is admitted
  // This node cannot take part (its program does not exist); it comes only to say so, that the others need
  // not wait.
  std::string problem;
  int problem_status = 1;

  // How long to try.
  std::chrono::milliseconds patience() const;
};

struct Membership {
  Welcome welcome;
  std::string master_addr;
  uint16_t master_port = 0;
  // Node 0 only: keeps the port for rank 0's store as long as the job lives.
  std::unique_ptr<base::PortReservation> reservation;
  // Node 0 only: of the workers of all nodes.
  std::chrono::milliseconds longest_grace{};
  // Node 0: one for each node, its own null. The others: the one to node 0.
  std::vector<std::unique_ptr<Connection>> connections;

  int node_rank() const { return welcome.node_rank; }
  int nnodes() const { return static_cast<int>(welcome.nprocs.size()); }
  int nproc() const { return welcome.nprocs[static_cast<size_t>(welcome.node_rank)]; }
  int first_rank() const;
  int world_size() const;
};

// A job of one node: no connections. `port` 0 chooses a free one. Throws SystemError when the port is taken.
Membership alone(int nproc, int max_restarts, uint16_t port);

// Blocks until all nodes are there. `warn` gets a line for each connection that was turned away; it may be
// called from this thread at any time. Throws TimeoutError naming the nodes that are missing, CannotStart
// when a node was refused or has a problem, SystemError when the port is taken.
Membership join(const JoinRequest& request, const Warn& warn);

}  // namespace lockstep::launch
