// Lines over a TCP socket that never block. Used by one thread at a time.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/deadline.h"
#include "base/fd.h"

namespace lockstep::launch {

class Connection {
 public:
  // The peer may send a longer line only to be cut off.
  static constexpr size_t kMostLineBytes = 256 * 1024;

  // Takes a connected socket. A peer whose machine or network is gone is noticed within about 20 s.
  explicit Connection(base::Fd socket);

  int fd() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }
  // Why it is not open any more, in words; empty when the peer simply closed it.
  const std::string& trouble() const { return trouble_; }

  // Queues the line and sends what can be sent now.
  void send(std::string_view line);
  bool wants_to_write() const { return open() && !outgoing_.empty(); }
  void flush();

  // Reads what is there. Closes on end of file, errors, and lines that are too long.
  void receive();
  // The next complete line that has been received, also after the connection was closed.
  std::optional<std::string> next_line();
  // Blocks for the next line; nullopt when the connection closed or the deadline passed.
  std::optional<std::string> wait_for_line(base::Deadline deadline);

  // Ends the connection after all queued lines have arrived, as far as that can be known by the deadline.
  void close_gracefully(base::Deadline deadline);
  void close() { socket_.reset(); }

 private:
  void fail(int error_number);

  base::Fd socket_;
  std::string incoming_;
  std::string outgoing_;
  std::string trouble_;
};

}  // namespace lockstep::launch
