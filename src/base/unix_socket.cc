#include "base/unix_socket.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <sys/socket.h>
#include <sys/un.h>

#include <lockstep/error.h>

#include "base/error_text.h"

namespace lockstep::base {

namespace {

// An address in the abstract namespace is a zero byte followed by the name, without a terminating zero. `use`
// passes it to bind(2) or connect(2).
template <class Use>
int with_address(const std::string& name, Use&& use) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return use(reinterpret_cast<const sockaddr*>(&address),
             static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length));
}

}  // namespace

Fd unix_socket(int type) {
  Fd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) throw_socket_error("cannot open a Unix socket", errno);
  return socket;
}

int connect_unix(const Fd& socket, const std::string& name) {
  return with_address(name, [&](const sockaddr* address, socklen_t length) {
    return ::connect(socket.get(), address, length) == 0 ? 0 : errno;
  });
}

int listen_unix(const Fd& socket, const std::string& name, int backlog) {
  return with_address(name, [&](const sockaddr* address, socklen_t length) {
    const bool listens = ::bind(socket.get(), address, length) == 0 && ::listen(socket.get(), backlog) == 0;
    return listens ? 0 : errno;
  });
}

uid_t user_behind(const Fd& socket) {
  ucred credentials = {};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    throw_socket_error("cannot read the user of a Unix socket's peer", errno);
  }
  return credentials.uid;
}

void throw_socket_error(const std::string& what, int error) {
  const bool full = error == EMFILE || error == ENFILE;
  throw SystemError(compose({.what = what,
                             .evidence = errno_text(error),
                             .hint = full ? "raise the limit of open files with `ulimit -n`" : ""}));
}

}  // namespace lockstep::base
