// The other agents while the job runs: lines to and from them, and a sign of life now and then. An agent that
// is silent for the node timeout is lost: its machine has no power, its network no cable, or its process has
// been stopped (SIGSTOP, a debugger). Used by one thread.
//
// A peer is named by its place in Membership::connections: on node 0 the node's rank, elsewhere 0 for node 0.
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
    std::string why;  // empty when it simply closed the connection
  };

  Contact() = default;
  // The time for each peer's first word begins now. Null connections are nobody's.
  Contact(std::vector<std::unique_ptr<Connection>> connections, std::chrono::milliseconds node_timeout);

  void send_to_all(const std::string& line);
  // Sends the sign of life when it is due. To be called between the steps of whatever takes long.
  void keep_alive();

  // Sends and reads what can be. `on_line` gets each line but signs of life, and says whether it is of the
  // protocol. Returns the peers that are lost since the last call; all their lines have been handed out. Does
  // not block.
  std::vector<Lost> hear(const std::function<bool(size_t peer, const std::string& line)>& on_line);

  // What to wait for, and for how long at most.
  void add_to(std::vector<pollfd>& waiting) const;
  std::chrono::milliseconds patience() const;

  // Parts from all. Blocks until they have heard the last lines, or the deadline has passed.
  void end(base::Deadline deadline) { part_from_all(connections_, deadline); }

 private:
  std::vector<std::unique_ptr<Connection>> connections_;
  std::chrono::milliseconds node_timeout_{};
  base::Deadline alive_at_ = base::Deadline::in(std::chrono::milliseconds(0));
};

}  // namespace lockstep::launch
