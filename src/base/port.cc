#include "base/port.h"

namespace lockstep::base {

PortReservation::PortReservation(Reach reach, uint16_t port) {
  // With SO_REUSEADDR, bind succeeds even if another process has bound the port, too. Listen once to check
  // that the port is usable, then hold it without listening.
  if (port != 0) listen_on(reach, port);
  socket_ = bind_socket(reach, port);
  port_ = local_port(socket_);
}

}  // namespace lockstep::base
