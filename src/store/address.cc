#include "store/address.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/net.h"

namespace lockstep::store {

namespace {

using namespace std::chrono_literals;

constexpr int kBacklog = 1024;

struct UnixAddress {
  sockaddr_un address{};
  socklen_t length = 0;

  explicit UnixAddress(const std::string& name) {
    address.sun_family = AF_UNIX;
    // The first byte is zero: that makes it abstract.
    const size_t size = std::min(name.size(), sizeof address.sun_path - 1);
    std::memcpy(address.sun_path + 1, name.data(), size);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

base::Fd unix_socket() {
  base::Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) {
    throw SystemError(
        base::compose({.what = "cannot open a Unix socket",
                       .evidence = base::errno_text(errno),
                       .hint = errno == EMFILE ? "raise the limit of open files with `ulimit -n`" : ""}));
  }
  return socket;
}

uid_t user_behind(const base::Fd& socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return ~uid_t{0};
  return credentials.uid;
}

bool is_unix(const base::Fd& socket) {
  int domain = 0;
  socklen_t length = sizeof domain;
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_UNIX;
}

}  // namespace

Address Address::on_this_machine(uint16_t port) {
  Address address;
  address.name = fmt::format("lockstep/{}/{}", ::geteuid(), port);
  address.port = port;
  return address;
}

Address Address::anywhere(std::string host, uint16_t port) {
  Address address;
  address.host = std::move(host);
  address.port = port;
  return address;
}

std::string Address::describe() const {
  return name.empty() ? fmt::format("{}:{}", host, port) : fmt::format("port {} of this machine", port);
}

base::Fd listen_at(const Address& address) {
  if (address.name.empty()) return base::listen_on(base::Reach::Everyone, address.port);
  auto socket = unix_socket();
  const UnixAddress bound(address.name);
  if (::bind(socket.get(), bound.get(), bound.length) != 0 || ::listen(socket.get(), kBacklog) != 0) {
    throw SystemError(base::compose(
        {.what = fmt::format("cannot open the meeting point at {}", address.describe()),
         .evidence = base::errno_text(errno),
         .hint = errno == EADDRINUSE ? "another job of this user meets at this port: choose another one, or "
                                       "name none and a free one is found"
                                     : ""}));
  }
  return socket;
}

base::Fd connect_to(const Address& address, base::Deadline deadline) {
  if (address.name.empty()) return base::connect_to(address.host, address.port, deadline);
  const UnixAddress target(address.name);
  for (auto pause = 1ms;; pause = std::min(pause * 2, 50ms)) {
    auto socket = unix_socket();
    if (::connect(socket.get(), target.get(), target.length) == 0) {
      if (const auto user = user_behind(socket); user != ::geteuid()) {
        throw UsageError(base::compose(
            {.what = fmt::format("another user holds the meeting point at {}", address.describe()),
             .evidence = fmt::format("it is of user {}, this process of user {}", user, ::geteuid()),
             .hint = "choose another MASTER_PORT, and start all ranks as one user"}));
      }
      return socket;
    }
    const int error = errno;
    if (deadline.expired()) {
      throw TimeoutError(
          base::compose({.what = fmt::format("nobody listens at {}", address.describe()),
                         .evidence = fmt::format("within {:.1f} s: {}",
                                                 static_cast<double>(deadline.budget().count()) / 1000.0,
                                                 base::errno_text(error))}));
    }
    std::this_thread::sleep_for(std::min(std::chrono::milliseconds(pause), deadline.remaining()));
  }
}

bool is_own_user(const base::Fd& socket) { return !is_unix(socket) || user_behind(socket) == ::geteuid(); }

void prepare(const base::Fd& socket) {
  ::fcntl(socket.get(), F_SETFL, ::fcntl(socket.get(), F_GETFL) | O_NONBLOCK);
  if (is_unix(socket)) return;
  const auto set = [&](int level, int option, int value) {
    ::setsockopt(socket.get(), level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  // Silence is normal here; these ask the peer's kernel whether the connection still exists.
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 3);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 9'000);
}

}  // namespace lockstep::store
