#include "store/handshake.h"

#include <cerrno>
#include <fmt/format.h>
#include <optional>
#include <poll.h>
#include <sys/socket.h>
#include <thread>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/net.h"
#include "store/protocol.h"

namespace lockstep::store {

namespace {

using namespace std::chrono_literals;
using base::Deadline;

[[noreturn]] void throw_mismatch(const Address& address, int rank, const std::string& evidence,
                                 const std::string& hint) {
  throw MismatchError(base::compose({.what = "cannot join the job's store",
                                     .where = fmt::format("rank {}, store at {}", rank, address.describe()),
                                     .evidence = evidence,
                                     .hint = hint}));
}

// The next frame. nullopt, with the reason in `why`, if the connection ended or the deadline has passed.
std::optional<std::string> next_frame(const base::Fd& socket, Frames& incoming, Deadline deadline,
                                      std::string* why) {
  for (;;) {
    if (auto frame = incoming.next(kMostFrameBytes)) return frame;
    if (!receive(socket, incoming, deadline, why)) return std::nullopt;
  }
}

bool shake_hands(const base::Fd& socket, const Address& address, const base::Token& token, int rank,
                 Deadline deadline, Frames& incoming, std::string* why) {
  try {
    const auto challenge = next_frame(socket, incoming, deadline, why);
    if (!challenge) return false;
    Reader asked(*challenge);
    if (asked.text() != kMagic) throw Malformed();
    if (const auto version = asked.number(); version != kVersion) {
      throw_mismatch(address, rank,
                     fmt::format("it uses protocol version {}, this process version {}", version, kVersion),
                     "start the same build of the program on every machine");
    }
    const auto theirs = asked.text();
    const auto mine = base::make_nonce();
    const auto hello = Writer().number(rank).text(mine).text(token.prove("client", theirs, mine)).frame();
    // One send is enough: the frame fits into the empty buffer of a new socket.
    if (::send(socket.get(), hello.data(), hello.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(hello.size())) {
      *why = base::errno_text(errno);
      return false;
    }
    const auto admission = next_frame(socket, incoming, deadline, why);
    if (!admission) return false;
    Reader answer(*admission);
    if (const auto refusal = answer.text(); !refusal.empty()) {
      throw_mismatch(
          address, rank, fmt::format("this rank was refused: {}", refusal),
          "give all ranks the same LOCKSTEP_TOKEN (or LOCKSTEP_TOKEN_FILE), and each job a port of "
          "its own");
    }
    if (!token.proves(answer.text(), "server", mine, theirs)) {
      throw_mismatch(address, rank, "the process that answers there does not know the job's token",
                     "check whether another program or job uses this port");
    }
    return true;
  } catch (const Malformed&) {
    throw_mismatch(address, rank, "the process that answers there is not a store of lockstep",
                   "another program uses this port: choose another MASTER_PORT");
  }
}

}  // namespace

bool receive(const base::Fd& socket, Frames& incoming, Deadline deadline, std::string* why) {
  char bytes[16 * 1024];
  for (;;) {
    const ssize_t size = ::recv(socket.get(), bytes, sizeof bytes, 0);
    if (size > 0) {
      incoming.add(bytes, static_cast<size_t>(size));
      return true;
    }
    if (size == 0) {
      *why = "it closed the connection";
      return false;
    }
    if (errno == EAGAIN) {
      if (deadline.expired()) {
        *why = "it accepts connections, but does not answer";
        return false;
      }
      pollfd waiting{socket.get(), POLLIN, 0};
      ::poll(&waiting, 1, deadline.poll_timeout());
    } else if (errno != EINTR) {
      *why = base::errno_text(errno);
      return false;
    }
  }
}

base::Fd admitted_socket(const Address& address, const base::Token& token, int rank, Deadline deadline,
                         Frames& incoming) {
  std::string why;
  for (;;) {
    auto socket = connect_to(address, deadline);
    base::prepare_for_messages(socket);
    if (shake_hands(socket, address, token, rank, deadline, incoming, &why)) return socket;
    if (deadline.expired()) {
      throw TimeoutError(
          base::compose({.what = fmt::format("cannot join the job's store at {}", address.describe()),
                         .where = fmt::format("rank {}", rank),
                         .evidence = why}));
    }
    // The server ended during the handshake, or dropped this connection because it had too many.
    incoming = {};
    std::this_thread::sleep_for(std::min<std::chrono::milliseconds>(50ms, deadline.remaining()));
  }
}

}  // namespace lockstep::store
