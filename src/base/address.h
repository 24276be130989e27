// Internet addresses and names as text.
#pragma once

#include <cstdint>
#include <memory>
#include <netdb.h>
#include <string>
#include <sys/socket.h>

namespace lockstep::base {

struct AddrinfoDeleter {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using AddrinfoList = std::unique_ptr<addrinfo, AddrinfoDeleter>;

// The addresses of a host, IPv4 and IPv6, in the order in which they should be tried. Returns null, and the
// reason in `why`, if the name does not resolve.
AddrinfoList resolve(const std::string& host, uint16_t port, int socktype, std::string& why);

// "10.0.0.1", also for that address in an IPv6 socket; "fd00::1", "fe80::1%eth0". Empty if it is not an
// Internet address.
std::string address_text(const sockaddr* address);

inline bool is_ipv6(const std::string& address) { return address.find(':') != std::string::npos; }
bool is_loopback(const std::string& address);
// An IPv6 address that is valid on one link only: it means nothing without the name of an interface.
bool is_link_local(const std::string& address);

// "node0:29500", "[fd00::1]:29500"
std::string host_port(const std::string& host, uint16_t port);
// "fd00::1" of "[fd00::1]"; other hosts are unchanged.
std::string without_brackets(const std::string& host);

}  // namespace lockstep::base
