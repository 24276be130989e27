// What a rank offers to the others for their connections: its address on each rail. It sends the offer with
// its other facts before anyone knows which ranks are on other machines, so an offer also contains what is
// wrong with it; choose.h reports that if the offer is needed.
//
// A rail is a network that connects all machines: the interface that routes to the master, or the interfaces
// that LOCKSTEP_SOCKET_IFNAME names. Each rank has an address on each rail, and rail i connects to rail i
// only.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "network/view.h"

namespace lockstep::network {

// An address of this machine.
struct Local {
  std::string interface;
  std::string address;  // empty: there is none of this family
  bool routed = false;  // a route to the master starts here
};

struct OfferedRail {
  Local v4, v6;
};

// Why there are no rails.
struct Problem {
  std::string what = "the interface that connects the machines is unknown";
  std::string evidence, hint;
};

struct Offer {
  std::string variable;  // the one that names the interfaces; empty: they follow from the routes
  std::vector<OfferedRail> rails;
  std::vector<std::string> reached;  // the addresses of the master to which this rank has a route
  // The master is this machine, under a loopback address such as Debian's 127.0.1.1. Only the other machines
  // know at which of its addresses they reach it. `rails` is empty, and these are all its addresses.
  bool at_master = false;
  std::vector<Local> locals;
  Problem problem;  // unless the offer is usable

  bool is_usable() const { return at_master || !rails.empty(); }
};

// LOCKSTEP_SOCKET_IFNAME, or GLOO_SOCKET_IFNAME if that is unset.
struct Naming {
  std::string variable;  // empty: neither is set
  std::string names;     // separated by commas
};
Naming naming_from_environment();

Offer make_offer(const View& view, const Naming& naming);
// That of this process. `master`: the host where the ranks meet; empty if they do not meet at an address.
Offer offer_of_this_process(const std::string& master);

// One rail from these addresses of a machine: of each family the first one that `routed` contains, otherwise
// the first one of `interface` (by default, that of the first routed address). Link-local addresses are left
// out.
OfferedRail rail_through(const std::vector<Local>& locals, const std::vector<std::string>& routed,
                         std::string interface = {});

// "eth0 10.0.0.3: routes to the master 10.0.0.1", or the problem.
std::string describe(const Offer& offer);
// Why the offer contains the address.
std::string reason_for(const Offer& offer, const Local& local);

nlohmann::json to_json(const Offer& offer);
// Throws nlohmann::json::exception.
Offer offer_from_json(const nlohmann::json& json);

}  // namespace lockstep::network
