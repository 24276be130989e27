// Sends and receives lines over a TCP socket without blocking. Not thread-safe.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"

namespace lockstep::launch {

class Connection {
 public:
  // A peer that sends a longer line is disconnected. The limit is lower for a peer that has not proved yet
  // that it belongs to the job.
  static constexpr size_t kMostLineBytes = 256 * 1024;
  static constexpr size_t kMostLineBytesOfStranger = 16 * 1024;

  // Takes a connected socket; the peer is a stranger. A dead machine or network is detected within about 10
  // s.
  explicit Connection(base::Fd socket);

  // The peer has proved that it belongs to the job.
  void trust() { most_line_bytes_ = kMostLineBytes; }
  // From now on the peer should send a line at least this often. Starts the time that silent_for() returns;
  // the owner has to check it.
  void expect_line_every(std::chrono::milliseconds longest_silence);
  std::chrono::milliseconds silent_for() const;

  int fd() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }
  // Why the connection is closed, for messages; empty if the peer closed it without an error.
  const std::string& close_reason() const { return close_reason_; }

  // Queues the line and sends as much as is possible without blocking.
  void send(std::string_view line);
  bool wants_to_write() const { return open() && !outgoing_.empty(); }
  void flush();

  // Reads what has arrived, but buffers little more than one line of the maximum length, so that no peer can
  // fill the memory. Closes the connection at end of file, on an error, and on a line that is too long.
  void receive();
  // The next complete line that has been received, also after the connection has been closed.
  std::optional<std::string> next_line();
  // Blocks until the next line arrives. nullopt if the connection is closed or the deadline has passed.
  std::optional<std::string> wait_for_line(base::Deadline deadline);

  // One step of a graceful close: sends the queued lines and end of file, discards what arrives, and closes
  // once the peer has closed. Until then, call it again whenever the socket is ready. Does not block.
  void close_gracefully();
  void close() { socket_.reset(); }

 private:
  void fail(int error_number);

  base::Fd socket_;
  size_t most_line_bytes_ = kMostLineBytesOfStranger;
  base::Deadline::Clock::time_point received_at_;
  bool shut_down_ = false;
  int send_error_ = 0;  // errno of the write that failed; later lines are discarded
  std::string incoming_;
  size_t consumed_ = 0;  // bytes of incoming_ that next_line() has returned
  std::string outgoing_;
  std::string close_reason_;
};

// Closes all connections gracefully at the same time. Blocks until all are closed or the deadline has passed.
// Skips null pointers.
void close_all_gracefully(const std::vector<std::unique_ptr<Connection>>& connections,
                          base::Deadline deadline);

}  // namespace lockstep::launch
