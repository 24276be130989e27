// Connections to the other agents while the job runs. Exchanges lines, and sends keepalive lines. An agent
// that is silent for the node timeout is lost: its machine is down, its network is disconnected, or its
// process has been stopped (SIGSTOP, a debugger). Not thread-safe.
//
// A peer is identified by its index in Membership::connections: on node 0 the rank of its node, elsewhere 0
// for node 0.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <poll.h>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "launch/connection.h"

namespace lockstep::launch {

class Contact {
 public:
  struct Lost {
    size_t peer;
    std::string why;  // empty if it closed the connection without an error
  };

  Contact() = default;
  // The timeout of each peer starts now. Null connections are skipped.
  Contact(std::vector<std::unique_ptr<Connection>> connections, std::chrono::milliseconds node_timeout);

  void send_to_all(const std::string& line);
  // Sends a keepalive line if it is due. Call it between the steps of long operations.
  void keep_alive();

  // Sends and receives what is possible without blocking. Passes each line except keepalives to `on_line`,
  // which returns whether the line is valid. Returns the peers lost since the last call, after passing on all
  // their lines.
  std::vector<Lost> receive(const std::function<bool(size_t peer, const std::string& line)>& on_line);

  // The descriptors to poll, and the longest time to poll for.
  void add_to(std::vector<pollfd>& waiting) const;
  std::chrono::milliseconds longest_wait() const;

  // Closes all connections gracefully. Blocks until the peers have received the last lines or the deadline
  // passes.
  void end(base::Deadline deadline) { close_all_gracefully(connections_, deadline); }

 private:
  std::vector<std::unique_ptr<Connection>> connections_;
  std::chrono::milliseconds node_timeout_{};
  base::Deadline alive_at_ = base::Deadline::in(std::chrono::milliseconds(0));
};

}  // namespace lockstep::launch
