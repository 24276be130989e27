// Unix sockets in the abstract namespace: they have no file that could be left behind, and the kernel reports
// the user of the peer.
#pragma once

#include <string>
#include <sys/types.h>

#include "base/fd.h"

namespace lockstep::base {

// Non-blocking and close-on-exec. `type`: SOCK_STREAM or SOCK_SEQPACKET. Throws SystemError.
Fd unix_socket(int type);

// Both return 0 or an errno.
int connect_unix(const Fd& socket, const std::string& name);
int listen_unix(const Fd& socket, const std::string& name, int backlog);

// The user id of the peer at the time of the connection. Throws SystemError.
uid_t user_behind(const Fd& socket);

// Throws a SystemError, with a hint if the process or the system has run out of descriptors.
[[noreturn]] void throw_socket_error(const std::string& what, int error);

}  // namespace lockstep::base
