// Those who have connected to node 0's port and are not members of the job yet. Most belong to it and will
// say so at once; but a port that is open to a network also gets port scanners, browsers and worse. So each
// caller is bounded in time and bytes, all of them in number, and none can make us wait.
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

// A caller that has proved that it knows the job's token, and awaits an ack or a refusal.
struct Caller {
  std::unique_ptr<Connection> connection;
  Hello hello;
  std::string proof;  // ours, for the ack
};

class Lobby {
 public:
  // `warn` gets a line for each caller that is turned away, up to some number.
  Lobby(base::Fd listener, uint16_t port, const base::Token& token, Warn warn);

  // What to wait for, and for how long at most.
  void add_to(std::vector<pollfd>& waiting) const;
  std::chrono::milliseconds patience() const;

  // Accepts, hears and evicts whoever is due. Does not block.
  std::vector<Caller> hear();
  // Tells the caller and lets it go. Does not block.
  void refuse(std::unique_ptr<Connection> connection, const std::string& why, const std::string& hint);
  // Turns the rest away and stops listening. Blocks for a moment, that the last refusals may arrive.
  void close();

 private:
  struct Stranger {
    std::unique_ptr<Connection> connection;
    std::string from;   // its address
    std::string nonce;  // that we sent it
    base::Deadline until;
  };
  struct Leaving {
    std::unique_ptr<Connection> connection;
    base::Deadline until;
  };

  void accept_some();
  void ask(base::Fd socket, std::string from);
  // Nothing when this is not one of ours; it has been turned away then.
  std::optional<Caller> judge(const std::string& line, Stranger stranger);
  void evict_oldest(const std::string& why);
  void complain(const Stranger& stranger, const std::string& what);
  void complain(const std::string& text);

  base::Fd listener_;
  uint16_t port_;
  const base::Token& token_;
  Warn warn_;
  std::vector<Stranger> strangers_;  // the oldest first
  std::vector<Leaving> leaving_;     // likewise
  std::optional<base::Deadline> accept_again_;
  int complaints_ = 0;
};

}  // namespace lockstep::launch
