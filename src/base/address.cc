#include "base/address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <string_view>

namespace lockstep::base {

AddrinfoList resolve(const std::string& host, uint16_t port, int socktype, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = socktype;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (failed != 0) why = fmt::format("the name \"{}\" does not resolve: {}", host, ::gai_strerror(failed));
  return AddrinfoList(failed == 0 ? list : nullptr);
}

std::string address_text(const sockaddr* address) {
  if (address == nullptr || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) return {};
  const bool v4 = address->sa_family == AF_INET;
  char text[NI_MAXHOST];
  if (::getnameinfo(address, v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6), text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) != 0) {
    return {};
  }
  // An IPv4 address in an IPv6 socket.
  constexpr std::string_view kMapped = "::ffff:";
  const std::string whole = text;
  const bool mapped = whole.starts_with(kMapped) && whole.find('.') != std::string::npos;
  return mapped ? whole.substr(kMapped.size()) : whole;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address.starts_with("::ffff:127.");
}

bool is_link_local(const std::string& address) {
  in6_addr bytes{};
  return ::inet_pton(AF_INET6, address.substr(0, address.find('%')).c_str(), &bytes) == 1 &&
         IN6_IS_ADDR_LINKLOCAL(&bytes);
}

std::string host_port(const std::string& host, uint16_t port) {
  return is_ipv6(host) ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

std::string without_brackets(const std::string& host) {
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  return bracketed ? host.substr(1, host.size() - 2) : host;
}

}  // namespace lockstep::base
