#include "base/net.h"

#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <thread>

#include <lockstep/error.h>

#include "base/address.h"
#include "base/error_text.h"

namespace lockstep::base {

namespace {

using namespace std::chrono_literals;

[[noreturn]] void refuse(Reach reach, uint16_t port, int error_number) {
  throw SystemError(
      compose({.what = port == 0 ? "cannot open a TCP port" : fmt::format("cannot open TCP port {}", port),
               .where = reach == Reach::ThisMachine ? "on 127.0.0.1" : "on all interfaces",
               .evidence = errno_text(error_number),
               .hint = error_number == EADDRINUSE
                           ? "another program uses this port: choose another one, or leave it out to get a "
                             "free one"
                           : "check the port number and the permissions of this user"}));
}

// One attempt. Returns an empty Fd, and the errno in `error_number`, if it fails.
Fd try_connect(const addrinfo& target, Deadline deadline, int& error_number) {
  Fd socket(::socket(target.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  error_number = 0;
  if (!socket) {
    error_number = errno;
    return {};
  }
  if (::connect(socket.get(), target.ai_addr, target.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) {
      error_number = errno;
      return {};
    }
    pollfd waiting{socket.get(), POLLOUT, 0};
    const int ready = ::poll(&waiting, 1, deadline.poll_timeout(5s));
    if (ready <= 0) {
      error_number = ready == 0 ? ETIMEDOUT : errno;
      return {};
    }
    socklen_t length = sizeof error_number;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error_number, &length);
    if (error_number != 0) return {};
  }
  // A socket whose ephemeral port happens to be the target port connects to itself if nobody listens there.
  sockaddr_storage here{}, there{};
  socklen_t here_size = sizeof here, there_size = sizeof there;
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&here), &here_size);
  ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&there), &there_size);
  if (here_size == there_size &&
      std::equal(reinterpret_cast<char*>(&here), reinterpret_cast<char*>(&here) + here_size,
                 reinterpret_cast<char*>(&there))) {
    error_number = ECONNREFUSED;
    return {};
  }
  ::fcntl(socket.get(), F_SETFL, ::fcntl(socket.get(), F_GETFL) & ~O_NONBLOCK);
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return socket;
}

}  // namespace

Fd bind_socket(Reach reach, uint16_t port) {
  // An IPv6 socket with mapped IPv4 addresses serves both kinds of peers. A kernel without IPv6 gets plain
  // IPv4.
  Fd socket;
  if (reach == Reach::Everyone) socket.reset(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool v6 = static_cast<bool>(socket);
  if (!v6) socket.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) refuse(reach, port, errno);

  const int on = 1;
  const int off = 0;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  int failed = 0;
  if (v6) {
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(port);
    address.sin6_addr = in6addr_any;
    failed = ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  } else {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(reach == Reach::ThisMachine ? INADDR_LOOPBACK : INADDR_ANY);
    failed = ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }
  if (failed != 0) refuse(reach, port, errno);
  return socket;
}

Fd listen_on(Reach reach, uint16_t port) {
  Fd socket = bind_socket(reach, port);
  if (::listen(socket.get(), SOMAXCONN) != 0) refuse(reach, port, errno);
  return socket;
}

uint16_t local_port(const Fd& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw SystemError(compose({.what = "cannot read a socket's address", .evidence = errno_text(errno)}));
  }
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

Fd connect_to(const std::string& host, uint16_t port, Deadline deadline) {
  std::string why = "no attempt was made";
  auto pause = 2ms;
  do {
    if (const auto targets = resolve(host, port, SOCK_STREAM, why)) {
      for (const addrinfo* target = targets.get(); target != nullptr; target = target->ai_next) {
        int error_number = 0;
        if (Fd socket = try_connect(*target, deadline, error_number)) return socket;
        why = errno_text(error_number);
      }
    }
    std::this_thread::sleep_for(std::min(std::chrono::milliseconds(pause), deadline.remaining()));
    pause = std::min(pause * 2, 200ms);
  } while (!deadline.expired());
  throw TimeoutError(compose(
      {.what = fmt::format("cannot reach {} within {:.1f} s", host_port(host, port),
                           deadline.budget().count() / 1000.0),
       .evidence = why,
       .hint =
           "check that the peer is running, that address and port are correct, and that no firewall blocks "
           "them"}));
}

void prepare_for_messages(const Fd& socket) {
  ::fcntl(socket.get(), F_SETFL, ::fcntl(socket.get(), F_GETFL) | O_NONBLOCK);
  const auto set = [&](int level, int option, int value) {
    ::setsockopt(socket.get(), level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 3);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 9'000);
}

bool is_this_machine(const std::string& host) {
  std::string why;
  const auto targets = resolve(host, 0, SOCK_STREAM, why);
  for (const addrinfo* target = targets.get(); target != nullptr; target = target->ai_next) {
    // Only an address of this machine can be bound.
    Fd socket(::socket(target->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket && ::bind(socket.get(), target->ai_addr, target->ai_addrlen) == 0) return true;
  }
  return false;
}

}  // namespace lockstep::base
