#include "shm/handshake.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <utility>
#include <vector>

namespace lockstep::shm {

namespace {

constexpr size_t kDescriptors = 2;

}  // namespace

Received receive_handshake(const base::Fd& socket) {
  using What = Received::What;
  Received received;
  iovec words{.iov_base = &received.handshake, .iov_len = sizeof received.handshake};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptors * sizeof(int))> control = {};
  msghdr message{
      .msg_iov = &words, .msg_iovlen = 1, .msg_control = control.data(), .msg_controllen = control.size()};
  ssize_t length = 0;
  do {
    length = ::recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // A reset is reported once, and a packet may follow it.
  } while (length < 0 && (errno == EINTR || errno == ECONNRESET));
  if (length <= 0) {
    received.what = length < 0 && errno == EAGAIN ? What::Nothing : What::Closed;
    return received;
  }
  // All received descriptors need an owner before any check, because there may be more than expected.
  std::vector<base::Fd> descriptors;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; at + sizeof(int) <= part->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + at, sizeof fd);
      descriptors.emplace_back(fd);
    }
  }
  const bool cut = (message.msg_flags & MSG_CTRUNC) != 0;
  const bool lost_some = descriptors.size() < kDescriptors && cut;
  const bool well_formed = length == sizeof received.handshake && (message.msg_flags & MSG_TRUNC) == 0 &&
                           ((descriptors.size() == kDescriptors && !cut) || lost_some);
  received.what = well_formed ? What::Handshake : What::Malformed;
  if (well_formed && !lost_some) {
    received.segment = std::move(descriptors[0]);
    received.memory = std::move(descriptors[1]);
  }
  return received;
}

int send_handshake(const base::Fd& socket, Handshake handshake, int segment, int memory) {
  const std::array<int, kDescriptors> descriptors = {segment, memory};
  iovec words{.iov_base = &handshake, .iov_len = sizeof handshake};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptors * sizeof(int))> control = {};
  msghdr message{
      .msg_iov = &words, .msg_iovlen = 1, .msg_control = control.data(), .msg_controllen = control.size()};
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof descriptors);
  std::memcpy(CMSG_DATA(part), descriptors.data(), sizeof descriptors);
  return ::sendmsg(socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? errno : 0;
}

}  // namespace lockstep::shm
