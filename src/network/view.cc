#include "network/view.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <memory>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <lockstep/error.h>

#include "base/address.h"
#include "base/error_text.h"
#include "base/fd.h"

namespace lockstep::network {

namespace {

constexpr uint16_t kAnyPort = 1;
// IFF_LOWER_UP of <linux/if.h>, which conflicts with <net/if.h>. IFF_RUNNING is up to a second late.
constexpr unsigned int kLowerUp = 1U << 16;

// An IPv6 address cannot be used while the kernel still looks for a duplicate of it, or after it has found
// one.
bool can_listen_at(const sockaddr* address) {
  const base::Fd socket(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const socklen_t length = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  return socket && ::bind(socket.get(), address, length) == 0;
}

std::vector<Interface> read_interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    throw SystemError(
        base::compose({.what = "cannot list the network interfaces", .evidence = base::errno_text(errno)}));
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::vector<Interface> interfaces;
  // Each address is an entry; an interface without one is an entry, too.
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    auto known = std::find_if(interfaces.begin(), interfaces.end(),
                              [&](const Interface& other) { return other.name == entry->ifa_name; });
    if (known == interfaces.end()) {
      interfaces.push_back({.name = entry->ifa_name,
                            .up = (entry->ifa_flags & IFF_UP) != 0,
                            .carrier = (entry->ifa_flags & kLowerUp) != 0});
      known = std::prev(interfaces.end());
    }
    const auto address = base::address_text(entry->ifa_addr);
    if (!address.empty() && can_listen_at(entry->ifa_addr)) known->addresses.push_back(address);
  }
  return interfaces;
}

// Connecting a datagram socket sends nothing; it only looks up the route.
std::string source_towards(const addrinfo& target) {
  const base::Fd socket(::socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket || ::connect(socket.get(), target.ai_addr, target.ai_addrlen) != 0) return {};
  sockaddr_storage storage{};
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  socklen_t length = sizeof storage;
  return ::getsockname(socket.get(), address, &length) == 0 ? base::address_text(address) : "";
}

bool only_loopback(const Interface& interface) {
  return std::all_of(interface.addresses.begin(), interface.addresses.end(), base::is_loopback);
}

}  // namespace

View view_towards(const std::string& master) {
  View view{.interfaces = read_interfaces(), .master = master};
  if (master.empty()) return view;
  const auto targets = base::resolve(master, kAnyPort, SOCK_DGRAM, view.why_no_route);
  for (const addrinfo* target = targets.get(); target != nullptr; target = target->ai_next) {
    if (const auto from = source_towards(*target); !from.empty()) {
      view.routes.push_back({from, base::address_text(target->ai_addr)});
    } else {
      view.why_no_route += fmt::format("{}no route to {}", view.why_no_route.empty() ? "" : ", ",
                                       base::address_text(target->ai_addr));
    }
  }
  return view;
}

std::string describe(const Interface& interface) {
  auto notes = interface.addresses;
  if (!interface.up) {
    notes.emplace_back("down");
  } else if (!interface.carrier) {
    notes.emplace_back("no carrier");
  } else if (notes.empty()) {
    notes.emplace_back("no address");
  }
  return fmt::format("{} ({})", interface.name, fmt::join(notes, ", "));
}

std::string describe(const std::vector<Interface>& interfaces) {
  constexpr size_t kMost = 16;
  auto sorted = interfaces;
  std::stable_partition(sorted.begin(), sorted.end(), [](const Interface& interface) {
    return interface.up && interface.carrier && !only_loopback(interface);
  });
  std::vector<std::string> texts;
  for (const auto& interface : sorted) texts.push_back(describe(interface));
  const size_t more = texts.size() > kMost ? texts.size() - kMost : 0;
  texts.resize(texts.size() - more);
  return texts.empty() ? "none"
                       : fmt::format("{}{}", fmt::join(texts, ", "),
                                     more == 0 ? "" : fmt::format(" and {} more", more));
}

}  // namespace lockstep::network
