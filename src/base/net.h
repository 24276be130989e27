// TCP sockets: listening, and connecting before a deadline.
#pragma once

#include <cstdint>
#include <string>

#include "base/deadline.h"
#include "base/fd.h"

namespace lockstep::base {

enum class Reach { ThisMachine, Everyone };  // 127.0.0.1, or all interfaces

// Bound with SO_REUSEADDR, but not listening. `port` 0 chooses a free port. Throws SystemError, which names
// the port.
Fd bind_socket(Reach reach, uint16_t port);
// Throws SystemError, which names the port, if another socket already listens on it.
Fd listen_on(Reach reach, uint16_t port);
uint16_t local_port(const Fd& socket);

// Retries until the connection is accepted: the peer may not have started yet, and its name may not resolve
// yet. Throws TimeoutError with the reason of the last failure.
Fd connect_to(const std::string& host, uint16_t port, Deadline deadline);

// Sets a socket up for small messages with pauses between them: non-blocking, TCP_NODELAY, and keepalive
// probes that detect a dead machine within 10 s. A Unix socket only becomes non-blocking.
void prepare_for_messages(const Fd& socket);

// Whether `host` resolves to an address of one of this machine's interfaces (in this network namespace).
bool is_this_machine(const std::string& host);

}  // namespace lockstep::base
