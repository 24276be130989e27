#include "launch/membership.h"

#include <algorithm>
#include <fmt/format.h>
#include <numeric>

#include <lockstep/error.h>

#include "base/host.h"
#include "base/net.h"
#include "launch/arrival.h"
#include "launch/gathering.h"

namespace lockstep::launch {

namespace {

using namespace std::chrono_literals;
using base::Reach;

// The listening socket if this agent is node 0; empty if it is not, or if another agent of the job on this
// machine was faster.
base::Fd try_to_lead(const JoinRequest& request, const Warn& warn) {
  const bool here = base::is_this_machine(request.address);
  if (request.node_rank) {
    if (*request.node_rank != 0) return {};
    if (!here) {
      // Not an error: it may be the name of a service that forwards to this machine.
      warn(fmt::format("this is node 0, but {} is not an address of this machine", request.address));
    }
    return base::listen_on(Reach::Everyone, request.port);
  }
  if (!here) return {};
  try {
    return base::listen_on(Reach::Everyone, request.port);
  } catch (const SystemError&) {
    return {};  // the handshake will show whether it is node 0 that listens there
  }
}

}  // namespace

std::chrono::milliseconds JoinRequest::join_timeout() const {
  // A node with a problem tries only briefly to report it.
  return problem.empty() ? timeout : std::min<std::chrono::milliseconds>(timeout, 5s);
}

int Membership::first_rank() const {
  return std::accumulate(welcome.nprocs.begin(), welcome.nprocs.begin() + welcome.node_rank, 0);
}

int Membership::world_size() const {
  return std::accumulate(welcome.nprocs.begin(), welcome.nprocs.end(), 0);
}

Membership alone(int nproc, int max_restarts, uint16_t port) {
  Membership membership;
  membership.welcome = {
      .node_rank = 0, .nprocs = {nproc}, .hosts = {base::host_name()}, .max_restarts = max_restarts};
  membership.master_addr = "127.0.0.1";
  membership.reservation = std::make_unique<base::PortReservation>(Reach::ThisMachine, port);
  membership.master_port = membership.reservation->port();
  membership.connections.resize(1);
  return membership;
}

Membership join(const JoinRequest& request, const Warn& warn) {
  if (base::Fd listener = try_to_lead(request, warn)) return gather(request, std::move(listener), warn);
  return arrive(request);
}

}  // namespace lockstep::launch
