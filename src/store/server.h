// Stores the keys and values of a job and tracks which of its ranks have ended.
//
// One thread serves all clients and never blocks on any of them. Whoever connects must prove knowledge of the
// job's token (docs/security.md); until then a connection gets little time and memory, and cannot delay
// others.
//
// Thread-safety: other threads only construct and destroy the server; all work happens on its own thread. In
// a child made by fork() the server's sockets are closed, so that clients notice when the parent process
// ends.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/token.h"

namespace lockstep::store {

class Server {
 public:
  Server(std::vector<base::Fd> listeners, base::Token token);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace lockstep::store
