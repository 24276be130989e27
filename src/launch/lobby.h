// The callers that have connected to node 0's port and are not members of the job yet. Most of them are nodes
// of the job, but an open port is also reached by port scanners, browsers and attackers. Therefore the time
// and bytes of each caller and the number of callers are limited, and none of them can block node 0.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <poll.h>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/token.h"
#include "launch/connection.h"
#include "launch/control.h"

namespace lockstep::launch {

using Warn = std::function<void(const std::string&)>;

// A caller that has proved that it knows the job's token, and waits for an ack or a refusal.
struct Caller {
  std::unique_ptr<Connection> connection;
  Hello hello;
  std::string proof;  // node 0's, for the ack
};

class Lobby {
 public:
  // `warn` is called for each caller that is rejected, up to a maximum number.
  Lobby(base::Fd listener, uint16_t port, const base::Token& token, Warn warn);

  // The descriptors to poll, and the longest time to poll for.
  void add_to(std::vector<pollfd>& waiting) const;
  std::chrono::milliseconds longest_wait() const;

  // Accepts connections, reads hellos, and drops callers that have timed out. Returns the callers that have
  // proved the token. Does not block.
  std::vector<Caller> serve();
  // Sends a refusal and closes the connection. Does not block.
  void refuse(std::unique_ptr<Connection> connection, const std::string& why, const std::string& hint);
  // Stops listening and drops all callers. Blocks briefly, so that the last refusals are delivered.
  void close();

 private:
  struct Stranger {
    std::unique_ptr<Connection> connection;
    std::string from;   // its address
    std::string nonce;  // of our challenge
    base::Deadline until;
  };
  struct Closing {
    std::unique_ptr<Connection> connection;
    base::Deadline until;
  };

  void accept_some();
  void challenge(base::Fd socket, std::string from);
  // Returns nullopt, after rejecting the caller, if the line is not a hello with a valid proof.
  std::optional<Caller> check_hello(const std::string& line, Stranger stranger);
  void evict_oldest(const std::string& why);
  void warn_limited(const Stranger& stranger, const std::string& what);
  void warn_limited(const std::string& text);

  base::Fd listener_;
  uint16_t port_;
  const base::Token& token_;
  Warn warn_;
  std::vector<Stranger> strangers_;  // the oldest first
  std::vector<Closing> closing_;     // the oldest first
  std::optional<base::Deadline> accept_again_;
  int warnings_ = 0;
};

}  // namespace lockstep::launch
