#include "store/address.h"

#include <cerrno>
#include <fmt/format.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include <lockstep/error.h>

#include "base/address.h"
#include "base/error_text.h"
#include "base/net.h"
#include "base/unix_socket.h"

namespace lockstep::store {

namespace {

using namespace std::chrono_literals;

constexpr int kBacklog = 1024;

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
  if (name.empty()) return base::host_port(host, port);
  return port != 0 ? fmt::format("port {} of this machine", port) : "a socket of this machine";
}

base::Fd listen_at(const Address& address) {
  if (address.name.empty()) return base::listen_on(base::Reach::Everyone, address.port);
  auto socket = base::unix_socket(SOCK_STREAM);
  if (const int error = base::listen_unix(socket, address.name, kBacklog); error != 0) {
    throw SystemError(base::compose(
        {.what = fmt::format("cannot open the meeting point at {}", address.describe()),
         .evidence = base::errno_text(error),
         .hint = error == EADDRINUSE ? "another job of this user uses this port: choose another one, or "
                                       "leave it out to get a free one"
                                     : ""}));
  }
  return socket;
}

base::Fd connect_to(const Address& address, base::Deadline deadline) {
  if (address.name.empty()) return base::connect_to(address.host, address.port, deadline);
  for (auto pause = 1ms;; pause = std::min(pause * 2, 50ms)) {
    auto socket = base::unix_socket(SOCK_STREAM);
    const int error = base::connect_unix(socket, address.name);
    if (error == 0) {
      if (const auto user = base::user_behind(socket); user != ::geteuid()) {
        throw UsageError(base::compose(
            {.what = fmt::format("another user holds the meeting point at {}", address.describe()),
             .evidence = fmt::format("it belongs to user {}, this process to user {}", user, ::geteuid()),
             .hint = "choose another MASTER_PORT, and start all ranks as one user"}));
      }
      return socket;
    }
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

bool is_own_user(const base::Fd& socket) noexcept {
  try {
    return !is_unix(socket) || base::user_behind(socket) == ::geteuid();
  } catch (const Error&) {
    return false;
  }
}

}  // namespace lockstep::store
