#include "shm/greeting.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <utility>
#include <vector>

#include <lockstep/error.h>

#include "base/error_text.h"

namespace lockstep::shm {

namespace {

// The abstract namespace: a zero, then the name, and no zero after it. `call` is bind or connect.
template <class Call>
int with_address(const std::string& name, Call&& call) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return call(reinterpret_cast<const sockaddr*>(&address),
              static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length));
}

}  // namespace

std::string random_letters() {
  std::array<uint8_t, kTokenLetters / 2> bits = {};
  // Up to 256 bytes come in one piece, whatever signals arrive.
  if (::getrandom(bits.data(), bits.size(), 0) != static_cast<ssize_t>(bits.size())) {
    throw_socket_error("cannot get random bits", errno);
  }
  std::string letters;
  for (const auto byte : bits) letters += fmt::format("{:02x}", byte);
  return letters;
}

Received receive_greeting(const base::Fd& socket) {
  using What = Received::What;
  Received received;
  iovec words{.iov_base = &received.greeting, .iov_len = sizeof received.greeting};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  msghdr message{
      .msg_iov = &words, .msg_iovlen = 1, .msg_control = control.data(), .msg_controllen = control.size()};
  ssize_t length = 0;
  do {
    length = ::recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // A reset is told once and may stand before a last message.
  } while (length < 0 && (errno == EINTR || errno == ECONNRESET));
  if (length <= 0) {
    received.what = length < 0 && errno == EAGAIN ? What::Nothing : What::End;
    return received;
  }
  // Everything that came must be owned before anything is judged: there may be more than was asked for.
  std::vector<base::Fd> descriptors;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; at + sizeof(int) <= part->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + at, sizeof fd);
      descriptors.emplace_back(fd);
    }
  }
  const bool lost_one = descriptors.empty() && (message.msg_flags & MSG_CTRUNC) != 0;
  const bool well_formed = length == sizeof received.greeting && (message.msg_flags & MSG_TRUNC) == 0 &&
                           (descriptors.size() == 1 || lost_one);
  received.what = well_formed ? What::Greeting : What::Nonsense;
  if (well_formed && !lost_one) received.memfd = std::move(descriptors.front());
  return received;
}

int send_greeting(const base::Fd& socket, Greeting greeting, int memfd) {
  iovec words{.iov_base = &greeting, .iov_len = sizeof greeting};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  msghdr message{
      .msg_iov = &words, .msg_iovlen = 1, .msg_control = control.data(), .msg_controllen = control.size()};
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof memfd);
  std::memcpy(CMSG_DATA(part), &memfd, sizeof memfd);
  return ::sendmsg(socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? errno : 0;
}

base::Fd make_socket() {
  base::Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) throw_socket_error("cannot open a Unix socket", errno);
  return socket;
}

int connect_to(const base::Fd& socket, const std::string& name) {
  return with_address(name, [&](const sockaddr* address, socklen_t length) {
    return ::connect(socket.get(), address, length) == 0 ? 0 : errno;
  });
}

base::Fd listen_at(const std::string& name, int backlog) {
  auto socket = make_socket();
  const int result = with_address(name, [&](const sockaddr* address, socklen_t length) {
    return ::bind(socket.get(), address, length) == 0 ? 0 : errno;
  });
  if (result != 0) throw_socket_error("cannot bind a Unix socket", result);
  if (::listen(socket.get(), backlog) != 0) throw_socket_error("cannot listen on a Unix socket", errno);
  return socket;
}

uid_t user_behind(const base::Fd& socket) {
  ucred credentials = {};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    throw_socket_error("cannot tell who is at the other end of a Unix socket", errno);
  }
  return credentials.uid;
}

void throw_socket_error(const std::string& what, int error) {
  const bool full = error == EMFILE || error == ENFILE;
  throw SystemError(base::compose({.what = what,
                                   .evidence = base::errno_text(error),
                                   .hint = full ? "raise the limit of open files with `ulimit -n`" : ""}));
}

}  // namespace lockstep::shm
