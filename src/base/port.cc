#include "base/port.h"

namespace lockstep::base {

PortReservation::PortReservation(Reach reach, uint16_t port) {
  // SO_REUSEADDR lets us bind to a named port that another process has bound too. Whether it can be listened
  // on is the question that counts: ask it, then let go and hold the port without listening.
  if (port != 0) listen_on(reach, port);
  socket_ = bind_socket(reach, port);
  port_ = local_port(socket_);
}

}  // namespace lockstep::base
