// c10d's TCPStore, which torchrun's agent hosts for its workers.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace lockstep::compat {

// Connects to the store, which must already be reachable. May block if its host does not answer.
c10::intrusive_ptr<c10d::Store> join_tcp_store(const std::string& host, uint16_t port,
                                               std::chrono::milliseconds timeout);

}  // namespace lockstep::compat
