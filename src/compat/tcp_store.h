// c10d's TCPStore on a socket of our choice.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/fd.h"

namespace lockstep::compat {

// The store lives in this process and answers on `listener`, a listening socket, and nowhere else.
c10::intrusive_ptr<c10d::Store> host_tcp_store(base::Fd listener, std::chrono::milliseconds timeout);

// A store that another process hosts; it must be reachable already.
c10::intrusive_ptr<c10d::Store> join_tcp_store(const std::string& host, uint16_t port,
                                               std::chrono::milliseconds timeout);

}  // namespace lockstep::compat
