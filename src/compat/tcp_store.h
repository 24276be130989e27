// c10d's TCPStore, which torchrun's agent hosts for its workers.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace lockstep::compat {

// It must be reachable already. May block when its host does not answer.
c10::intrusive_ptr<c10d::Store> join_tcp_store(const std::string& host, uint16_t port,
                                               std::chrono::milliseconds timeout);

}  // namespace lockstep::compat
