// How the agents of several nodes find each other: node 0 listens on the job's address and port, and the
// others connect to it. Once all have joined, each knows its node rank and the number of workers of every
// node.
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
  // nullopt: the agent that can listen on the address is node 0, the others are numbered in order of arrival.
  std::optional<int> node_rank;
  std::string address;  // of node 0
  uint16_t port = 0;
  std::string run_id;
  int nproc = 1;
  int max_restarts = 0;  // node 0's value applies
  std::chrono::milliseconds timeout{};
  std::chrono::milliseconds node_timeout{};  // node 0's value applies
  std::chrono::milliseconds grace{};         // of this node's workers
  base::Token token;                         // empty: every node without a token is admitted
  // Why this node cannot run its part of the job (its program does not exist). It joins only to report the
  // problem, so that the other nodes do not wait for it.
  std::string problem;
  int problem_status = 1;

  // How long to wait for the other nodes.
  std::chrono::milliseconds join_timeout() const;
};

struct Membership {
  Welcome welcome;
  std::string master_addr;
  uint16_t master_port = 0;
  // Node 0 only: reserves the port of rank 0's store for the duration of the job.
  std::unique_ptr<base::PortReservation> reservation;
  // Node 0 only: the longest grace period of all nodes.
  std::chrono::milliseconds longest_grace{};
  // On node 0: one for each node, null for itself. On the others: the one to node 0.
  std::vector<std::unique_ptr<Connection>> connections;

  int node_rank() const { return welcome.node_rank; }
  int nnodes() const { return static_cast<int>(welcome.nprocs.size()); }
  int nproc() const { return welcome.nprocs[static_cast<size_t>(welcome.node_rank)]; }
  int first_rank() const;
  int world_size() const;
};

// The membership of a job with one node, without connections. `port` 0 chooses a free port. Throws
// SystemError if the port is in use.
Membership alone(int nproc, int max_restarts, uint16_t port);

// Blocks until all nodes have joined. Calls `warn` on this thread for each connection that it rejects. Throws
// TimeoutError, which names the missing nodes; CannotStart if this node was refused or a node has a problem;
// SystemError if the port is in use.
Membership join(const JoinRequest& request, const Warn& warn);

}  // namespace lockstep::launch
