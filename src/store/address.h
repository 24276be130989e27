// Where a store is reached: a Unix socket on one machine, a TCP port between machines.
//
// At a Unix socket only this process's own user is let in.
#pragma once

#include <cstdint>
#include <string>

#include "base/deadline.h"
#include "base/fd.h"

namespace lockstep::store {

struct Address {
  std::string name;  // of a Unix socket; empty: host and port
  std::string host;
  uint16_t port = 0;

  static Address on_this_machine(uint16_t port);  // the one that belongs to this user and this number
  static Address anywhere(std::string host, uint16_t port);
  std::string describe() const;
};

// Throws SystemError, naming the address, when it is taken.
base::Fd listen_at(const Address& address);

// Tries again until somebody listens. Throws TimeoutError with the last reason; UsageError when another user
// listens there.
base::Fd connect_to(const Address& address, base::Deadline deadline);

// Whether whoever called may be heard at all. On TCP everybody may; there the token decides.
bool is_own_user(const base::Fd& socket) noexcept;

}  // namespace lockstep::store
