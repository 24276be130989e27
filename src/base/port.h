// Reserves a TCP port for this job from the moment it is chosen.
//
// If a free port is chosen first and opened later, another job can take it in between. A reservation prevents
// that with a socket that is bound but does not listen: Linux then does not hand the port out as a free one,
// while a socket with SO_REUSEADDR (ours, and that of c10d's store) can still bind to it and listen, in this
// or another process.
#pragma once

#include <cstdint>

#include "base/fd.h"
#include "base/net.h"

namespace lockstep::base {

class PortReservation {
 public:
  // `port` 0 chooses a free port. Throws SystemError if another socket already listens on the port.
  explicit PortReservation(Reach reach, uint16_t port = 0);

  uint16_t port() const { return port_; }

 private:
  Fd socket_;
  uint16_t port_;
};

}  // namespace lockstep::base
