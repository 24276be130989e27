// Chooses the addresses at which the ranks of a group connect. The choice is a function of what all ranks
// have offered, so that all of them make the same one, or fail with the same error.
#pragma once

#include <string>
#include <vector>

#include "network/offer.h"

namespace lockstep::network {

// A rank of the group.
struct Member {
  std::string name;     // for messages: "rank 1 (pid 4711, host node0)"
  std::string machine;  // equal for ranks that reach each other over loopback
  Offer offer;
};

// The rails of one rank, with its local addresses. Rail i of every rank connects to rail i of the others.
struct Rails {
  std::vector<std::string> addresses;
  std::vector<std::string> interfaces;
  std::vector<std::string> reasons;  // why these addresses

  bool operator==(const Rails&) const = default;
};

// By rank. If all ranks are on one machine: loopback. All addresses of a rail have one family, because Gloo
// refuses to connect two: one that all machines have there; of both, the one in which all machines have a
// route to the master, and IPv4 if that decides nothing.
//
// Throws UsageError, which names the rank and its interface, if a rank has no address that can be used;
// MismatchError if the ranks have different numbers of rails.
std::vector<Rails> choose_rails(const std::vector<Member>& members);

// "eth0 10.0.0.3: routes to the master 10.0.0.1; …"
std::string describe(const Rails& rails);

}  // namespace lockstep::network
