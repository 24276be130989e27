// Tests whether machines reach each other over TCP, before Gloo connects: Gloo would wait for its own
// timeout, and report neither interface nor cause.
//
// A responder listens at its machine's addresses. The others connect, send a nonce, and get back a proof that
// it is the responder they meant: they know its secret from the job's store. So another program at that
// address and port is not mistaken for a member of the job, and a member of another job gets an answer that
// it cannot use.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/token.h"

namespace lockstep::network {

// Answers on its own thread until it is destroyed. Never waits for any single connection, and keeps a limited
// number of them.
class Responder {
 public:
  // Listens at a free port of each address. Throws SystemError, which names the address.
  Responder(const std::vector<std::string>& addresses, base::Token secret);
  ~Responder();
  Responder(const Responder&) = delete;
  Responder& operator=(const Responder&) = delete;

  const std::vector<uint16_t>& ports() const;  // one for each address

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

// An address at which a responder listens.
struct Target {
  std::string address;
  uint16_t port;
  base::Token secret;
};

struct Reached {
  std::string fault;  // empty: the responder has answered
  std::string from;   // the local address of the connection, if there is one
};

// Connects to all targets at the same time, and closes the connections. Blocks until each of them has
// answered or failed: until `connected_by` for its connection, and `answered_by` for its answer.
std::vector<Reached> try_to_reach(const std::vector<Target>& targets, base::Deadline connected_by,
                                  base::Deadline answered_by);

}  // namespace lockstep::network
