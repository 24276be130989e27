// The handshake between a client and the server.
#pragma once

#include <string>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/token.h"
#include "store/address.h"
#include "store/wire.h"

namespace lockstep::store {

// Connects, proves the token to the server and checks the server's proof. Retries if the server closes the
// connection meanwhile. Bytes that the server has sent after the handshake are left in `incoming`. Throws
// TimeoutError; MismatchError if the other side has another token or is not a store.
base::Fd admitted_socket(const Address& address, const base::Token& token, int rank, base::Deadline deadline,
                         Frames& incoming);

// Waits for bytes and adds them to `incoming`. Returns false, with the reason in `why`, if the connection has
// ended or the deadline has passed.
bool receive(const base::Fd& socket, Frames& incoming, base::Deadline deadline, std::string* why);

}  // namespace lockstep::store
