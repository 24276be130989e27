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

// Node 0's listening socket; empty when another agent of the job on this machine was faster.
base::Fd try_to_lead(const JoinRequest& request, const Warn& warn) {
  const bool here = base::is_this_machine(request.address);
  if (request.node_rank) {
    if (*request.node_rank != 0) return {};
    if (!here) {
      // It may be the name of a service in front of this machine.
      warn(fmt::format("this is node 0, but {} is not an address of this machine", request.address));
    }
    return base::listen_on(Reach::Everyone, request.port);
  }
  if (!here) return {};
  try {
    return base::listen_on(Reach::Everyone, request.port);
  } catch (const SystemError&) {
    return {};  // connecting will show who listens there
  }
}

}  // namespace

std::chrono::milliseconds JoinRequest::patience() const {
  // With a problem, it tries only for a moment to tell the others.
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
