// The address of a store: a Unix socket within one machine, a TCP port between machines. A Unix socket
// accepts only processes of the same user.
#pragma once

#include <cstdint>
#include <string>

#include "base/deadline.h"
#include "base/fd.h"

namespace lockstep::store {

struct Address {
  std::string name;  // of the Unix socket; if empty, host and port are used
  std::string host;
  uint16_t port = 0;

  static Address on_this_machine(uint16_t port);  // a Unix socket whose name contains the user and the port
  static Address anywhere(std::string host, uint16_t port);
  std::string describe() const;
};

// Throws SystemError, which names the address, if it is in use.
base::Fd listen_at(const Address& address);

// Retries until a process listens there. Throws TimeoutError with the reason of the last failure, UsageError
// if another user listens there.
base::Fd connect_to(const Address& address, base::Deadline deadline);

// Whether the peer is a process of this user. Always true for TCP, where the token decides about admission.
bool is_own_user(const base::Fd& socket) noexcept;

}  // namespace lockstep::store
