// The logic of the store's server without its sockets: it receives the bytes of each caller and queues bytes
// for callers to be sent. Not thread-safe.
#pragma once

#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/token.h"
#include "store/protocol.h"
#include "store/table.h"
#include "store/wire.h"

namespace lockstep::store {

class Service {
 public:
  // One connection. Its owner sends `outgoing`, and closes the connection once `closed` is set.
  struct Caller {
    std::string outgoing = {};
    bool admitted = false;  // has proved that it knows the token
    bool closed = false;

    Frames incoming = {};
    std::string nonce = base::make_nonce();
    int rank = -1;
    bool said_bye = false;
  };

  explicit Service(base::Token token) : token_(std::move(token)) {}

  // The reference is valid until remove().
  Caller& add();
  void hear(Caller& caller, const char* bytes, size_t size);
  // The connection has ended, on either side.
  void end(Caller& caller);
  void remove(Caller& caller);

  // Answers the Get requests whose keys exist now or whose deadline has passed.
  void answer_waiting();
  std::optional<base::Deadline> next_deadline() const;

 private:
  struct Waiting {
    Caller* caller;
    int64_t request;
    std::vector<std::string> keys;
    base::Deadline deadline;
  };
  struct Failed {
    int rank;
    std::string text;
  };

  void admit(Caller& caller, Reader& hello);
  void answer(Caller& caller, Reader& request);
  void fail(const Caller& caller, const std::string& topic, std::string text);
  void announce(int rank, News how);
  void send(Caller& caller, const Writer& message);
  void send_to_all(const Writer& message);

  const base::Token token_;
  std::list<Caller> callers_;
  std::vector<Waiting> waiting_;
  Table table_;
  std::map<int, News> ended_;
  std::map<std::string, Failed> failures_;  // by topic
};

}  // namespace lockstep::store
