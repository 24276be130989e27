#include "launch/connection.h"

#include <algorithm>
#include <cerrno>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/error_text.h"
#include "base/net.h"

namespace lockstep::launch {

namespace {

using Clock = base::Deadline::Clock;

}  // namespace

Connection::Connection(base::Fd socket) : socket_(std::move(socket)), received_at_(Clock::now()) {
  base::prepare_for_messages(socket_);
}

void Connection::expect_line_every(std::chrono::milliseconds longest_silence) {
  received_at_ = Clock::now();
  // The kernel must not give up before the owner does, whose message is better.
  const int patience_ms = static_cast<int>(std::min<int64_t>(longest_silence.count() + 5'000, 1 << 30));
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &patience_ms, sizeof patience_ms);
}

std::chrono::milliseconds Connection::silent_for() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - received_at_);
}

void Connection::send(std::string_view line) {
  if (!open() || send_error_ != 0) return;
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
      // Keep the socket open: the peer's last lines may still be unread, and receive() finds the end after
      // them.
      send_error_ = errno;
      outgoing_.clear();
    }
  }
}

void Connection::receive() {
  char bytes[16 * 1024];
  while (open() && incoming_.size() - consumed_ <= most_line_bytes_) {
    const ssize_t size = ::recv(socket_.get(), bytes, sizeof bytes, 0);
    if (size > 0) {
      incoming_.append(bytes, static_cast<size_t>(size));
      received_at_ = Clock::now();
    } else if (size == 0) {
      // The kernel reports an error only once, possibly to an earlier write.
      if (send_error_ != 0 && send_error_ != EPIPE) close_reason_ = base::errno_text(send_error_);
      socket_.reset();
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      fail(errno);
    }
  }
  if (open() && incoming_.find('\n', consumed_) == std::string::npos) {
    close_reason_ = "it sent a line that is too long";
    socket_.reset();
  }
}

std::optional<std::string> Connection::next_line() {
  const auto newline = incoming_.find('\n', consumed_);
  if (newline == std::string::npos) return std::nullopt;
  std::string line = incoming_.substr(consumed_, newline - consumed_);
  consumed_ = newline + 1;
  // Not after each line: erasing moves the rest of the buffer.
  if (2 * consumed_ >= incoming_.size()) {
    incoming_.erase(0, consumed_);
    consumed_ = 0;
  }
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

void Connection::close_gracefully() {
  flush();
  if (open() && outgoing_.empty() && !shut_down_) {
    ::shutdown(socket_.get(), SHUT_WR);
    shut_down_ = true;
  }
  // Closing a socket with unread bytes sends a reset, which can destroy lines that the peer has not read yet.
  consumed_ = incoming_.size();
  receive();
  incoming_.clear();
  consumed_ = 0;
}

void Connection::fail(int error_number) {
  close_reason_ = base::errno_text(error_number);
  socket_.reset();
}

void close_all_gracefully(const std::vector<std::unique_ptr<Connection>>& connections,
                          base::Deadline deadline) {
  for (;;) {
    std::vector<pollfd> waiting;
    for (const auto& connection : connections) {
      if (!connection || !connection->open()) continue;
      connection->close_gracefully();
      if (!connection->open()) continue;
      const int events = POLLIN | (connection->wants_to_write() ? POLLOUT : 0);
      waiting.push_back({connection->fd(), static_cast<short>(events), 0});
    }
    if (waiting.empty() || deadline.expired()) break;
    ::poll(waiting.data(), waiting.size(), deadline.poll_timeout());
  }
  for (const auto& connection : connections) {
    if (connection) connection->close();
  }
}

}  // namespace lockstep::launch
