#include "launch/connection.h"

#include <cerrno>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/error_text.h"

namespace lockstep::launch {

Connection::Connection(base::Fd socket) : socket_(std::move(socket)) {
  ::fcntl(socket_.get(), F_SETFL, ::fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
  const auto set = [&](int level, int option, int value) {
    ::setsockopt(socket_.get(), level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  // Silence is normal here; these ask the peer's kernel every 5 s whether the connection still exists.
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 20'000);
}

void Connection::send(std::string_view line) {
  if (!open()) return;
  outgoing_.append(line);
  outgoing_ += '\n';
  flush();
}

void Connection::flush() {
  while (wants_to_write()) {
    const ssize_t sent = ::send(socket_.get(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      outgoing_.erase(0, static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      fail(errno);
    }
  }
}

void Connection::receive() {
  char bytes[16 * 1024];
  while (open()) {
    const ssize_t size = ::recv(socket_.get(), bytes, sizeof bytes, 0);
    if (size > 0) {
      incoming_.append(bytes, static_cast<size_t>(size));
      const auto last_newline = incoming_.rfind('\n');
      const size_t complete = last_newline == std::string::npos ? 0 : last_newline + 1;
      if (incoming_.size() - complete > kMostLineBytes) {
        trouble_ = "it sent a line that is too long";
        incoming_.clear();
        socket_.reset();
      }
      // Leave the rest in the kernel: whoever sends without end must not fill our memory.
      if (incoming_.size() > 4 * kMostLineBytes) return;
    } else if (size == 0) {
      socket_.reset();
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      fail(errno);
    }
  }
}

std::optional<std::string> Connection::next_line() {
  const auto newline = incoming_.find('\n');
  if (newline == std::string::npos) return std::nullopt;
  std::string line = incoming_.substr(0, newline);
  incoming_.erase(0, newline + 1);
  return line;
}

std::optional<std::string> Connection::wait_for_line(base::Deadline deadline) {
  for (;;) {
    if (auto line = next_line()) return line;
    if (!open() || deadline.expired()) return std::nullopt;
    const int events = POLLIN | (wants_to_write() ? POLLOUT : 0);
    pollfd waiting{fd(), static_cast<short>(events), 0};
    ::poll(&waiting, 1, deadline.poll_timeout());
    flush();
    receive();
  }
}

void Connection::close_gracefully(base::Deadline deadline) {
  bool said_goodbye = false;
  while (open() && !deadline.expired()) {
    if (!wants_to_write() && !said_goodbye) {
      ::shutdown(socket_.get(), SHUT_WR);
      said_goodbye = true;
    }
    const int events = POLLIN | (wants_to_write() ? POLLOUT : 0);
    pollfd waiting{fd(), static_cast<short>(events), 0};
    ::poll(&waiting, 1, deadline.poll_timeout());
    flush();
    // A socket closed with unread bytes sends a reset, which may overtake what we sent last.
    receive();
    incoming_.clear();
  }
  close();
}

void Connection::fail(int error_number) {
  trouble_ = base::errno_text(error_number);
  socket_.reset();
}

}  // namespace lockstep::launch
