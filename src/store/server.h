// Keeps the keys and values of a job, and knows which of its ranks have ended.
//
// One thread serves all clients and waits for none of them. Whoever connects has to prove that he knows the
// job's token (docs/security.md); until then he gets little time and little memory, and those who come after
// him are not held up.
//
// Thread-safety: construct and destroy it; the rest happens on its own thread. In a child made by fork() it
// is closed, so that the child keeps nobody waiting for a store whose process has ended.
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
