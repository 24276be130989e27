// TCP sockets: listen, connect before a deadline, and what this machine's addresses are.
#pragma once

#include <cstdint>
#include <string>

#include "base/deadline.h"
#include "base/fd.h"

namespace lockstep::base {

enum class Reach { ThisMachine, Everyone };  // 127.0.0.1, or all interfaces

// Bound with SO_REUSEADDR, not listening. `port` 0 chooses a free one. Throws SystemError, naming the port.
Fd bind_socket(Reach reach, uint16_t port);
// Throws SystemError, naming the port, when somebody listens there already.
Fd listen_on(Reach reach, uint16_t port);
uint16_t local_port(const Fd& socket);

// Tries again until somebody accepts: the other side may not have started yet, its name may not resolve yet.
// Throws TimeoutError with the last reason.
Fd connect_to(const std::string& host, uint16_t port, Deadline deadline);

// For small messages, between which there may be silence. Non-blocking; what is written is sent at once; the
// kernel asks the peer's whether the connection still exists, so that a machine that is gone is noticed
// within 10 s. On a Unix socket only the first.
void prepare_for_messages(const Fd& socket);

// Whether `host` is this machine (in this network namespace): an address of one of its interfaces.
bool is_this_machine(const std::string& host);
// The address from which this machine reaches `host`, as text; empty when there is no route.
std::string address_towards(const std::string& host, uint16_t port);
// The first address of a network interface. Throws UsageError, listing the interfaces that there are.
std::string address_of_interface(const std::string& name);
bool is_loopback(const std::string& address);

}  // namespace lockstep::base
