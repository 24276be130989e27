// Lines over a TCP socket that never block. Used by one thread at a time.
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
  // A peer that sends a longer line is cut off. One that has not shown yet that it belongs to the job has
  // little to say.
  static constexpr size_t kMostLineBytes = 256 * 1024;
  static constexpr size_t kMostLineBytesOfStranger = 16 * 1024;

  // Takes a connected socket, to a stranger. A peer whose machine or network is gone is noticed within about
  // 10 s.
  explicit Connection(base::Fd socket);

  // The peer belongs to the job.
  void trust() { most_line_bytes_ = kMostLineBytes; }
  // From now on the peer is to say something at least this often. The time is the caller's to watch, with
  // silent_for(); it begins now.
  void expect_word_every(std::chrono::milliseconds longest_silence);
  std::chrono::milliseconds silent_for() const;

  int fd() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }
  // Why it is not open any more, in words; empty when the peer simply closed it.
  const std::string& trouble() const { return trouble_; }

  // Queues the line and sends what can be sent now.
  void send(std::string_view line);
  bool wants_to_write() const { return open() && !outgoing_.empty(); }
  void flush();

  // Reads what is there, but not much more than one line of the greatest length before lines are taken:
  // whoever sends without end must not fill our memory. Closes on end of file, errors, and lines that are too
  // long.
  void receive();
  // The next complete line that has been received, also after the connection was closed.
  std::optional<std::string> next_line();
  // Blocks for the next line; nullopt when the connection closed or the deadline passed.
  std::optional<std::string> wait_for_line(base::Deadline deadline);

  // A step towards ending the connection after all queued lines have arrived; what comes in is thrown away.
  // Closes when the peer has closed; until then, call it again when the socket is ready. Does not block.
  void part();
  void close() { socket_.reset(); }

 private:
  void fail(int error_number);

  base::Fd socket_;
  size_t most_line_bytes_ = kMostLineBytesOfStranger;
  base::Deadline::Clock::time_point heard_at_;
  bool parting_ = false;
  int send_error_ = 0;  // nothing can be sent any more
  std::string incoming_;
  size_t taken_ = 0;  // bytes of incoming_ that next_line() has given away
  std::string outgoing_;
  std::string trouble_;
};

// Parts from all of them at once. Blocks until all are closed, or the deadline has passed. Null ones are left
// out.
void part_from_all(const std::vector<std::unique_ptr<Connection>>& connections, base::Deadline deadline);

}  // namespace lockstep::launch
