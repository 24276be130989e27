// A client's first words with the server.
#pragma once

#include <string>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/token.h"
#include "store/address.h"
#include "store/wire.h"

namespace lockstep::store {

// Connects and proves the token, and lets the server prove it; tries again when the server goes away
// meanwhile. What the server has sent beyond that is left in `incoming`. Throws TimeoutError; MismatchError
// when the other side has another token or is no store.
base::Fd admitted_socket(const Address& address, const base::Token& token, int rank, base::Deadline deadline,
                         Frames& incoming);

// Waits for bytes and adds them. False when the connection has ended (with the reason in `why`) or the
// deadline is over.
bool receive(const base::Fd& socket, Frames& incoming, base::Deadline deadline, std::string* why);

}  // namespace lockstep::store
