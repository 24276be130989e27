// A TCP port that belongs to this job from the moment it is chosen.
//
// Choosing a free port and opening it later leaves a gap in which another job can take it. A reservation
// closes the gap: its socket is bound but does not listen. Linux then gives the port to nobody else who asks
// for a free one, while a socket that sets SO_REUSEADDR (ours, and c10d's store) may still bind to it and
// listen, in this or in another process.
#pragma once

#include <cstdint>

#include "base/fd.h"
#include "base/net.h"

namespace lockstep::base {

class PortReservation {
 public:
  // `port` 0 chooses a free one. Throws SystemError when somebody listens on the port already.
  explicit PortReservation(Reach reach, uint16_t port = 0);

  uint16_t port() const { return port_; }

 private:
  Fd socket_;
  uint16_t port_;
};

}  // namespace lockstep::base
