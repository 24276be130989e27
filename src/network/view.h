// The network as this machine sees it: its interfaces, and its routes to the master, where the ranks meet.
#pragma once

#include <string>
#include <vector>

namespace lockstep::network {

struct Interface {
  std::string name;
  bool up = true;                      // by its configuration
  bool carrier = true;                 // there is a cable, or the other end of a virtual one
  std::vector<std::string> addresses;  // those at which a socket can listen
};

// The way to one address of the master.
struct Route {
  std::string from;  // an address of this machine
  std::string to;
};

struct View {
  std::vector<Interface> interfaces;
  std::string master;         // empty if the ranks do not meet at an address
  std::vector<Route> routes;  // to the addresses of the master that have a route, the preferred one first
  std::string why_no_route;   // if there are none
};

// Reads the interfaces, resolves the name of the master and looks up the routes. Sends nothing to the master.
View view_towards(const std::string& master);

// "eth0 (10.0.0.3, fd00::3)", "eth1 (down)"
std::string describe(const Interface& interface);
// In one line: first those that could connect machines; if there are many, without the last ones.
std::string describe(const std::vector<Interface>& interfaces);

}  // namespace lockstep::network
