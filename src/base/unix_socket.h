// Unix sockets in the abstract namespace: nothing appears in a file system and nothing is left behind, and
// the kernel says which user is at the other end.
#pragma once

#include <string>
#include <sys/types.h>

#include "base/fd.h"

namespace lockstep::base {

// Non-blocking and close-on-exec. `type`: SOCK_STREAM or SOCK_SEQPACKET. Throws SystemError.
Fd unix_socket(int type);

// Both return 0 or the error.
int connect_unix(const Fd& socket, const std::string& name);
int listen_unix(const Fd& socket, const std::string& name, int backlog);

// Who stood at the other end when the connection was made. Throws SystemError.
uid_t user_behind(const Fd& socket);

// A SystemError that says what to do where descriptors are short.
[[noreturn]] void throw_socket_error(const std::string& what, int error);

}  // namespace lockstep::base
