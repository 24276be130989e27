#include "wires/connect.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/socket.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/net.h"
#include "base/token.h"

namespace lockstep::wires {

namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Fd;

constexpr size_t kSecretBytes = 32;
// For the first bytes of a connection. A stranger that sends none delays the ranks no longer.
constexpr auto kHelloTime = 2s;
constexpr std::chrono::milliseconds kSlice = 20ms;

// The first bytes on a connection.
struct Hello {
  std::array<char, kSecretBytes> secret;  // of the rank that is connected to
  int32_t rank;                           // that connects
};

std::string key_of(int rank) { return fmt::format("wires/{}", rank); }

bool receive_all(const Fd& socket, void* data, size_t bytes, Deadline deadline) {
  auto* to = static_cast<char*>(data);
  while (bytes > 0) {
    pollfd waiting{socket.get(), POLLIN, 0};
    if (::poll(&waiting, 1, deadline.poll_timeout()) <= 0) return false;
    const auto got = ::recv(socket.get(), to, bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return false;
    to += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

Fd connect_to(const std::string& text, int rank, Deadline deadline) {
  const auto there = nlohmann::json::parse(text);
  Fd socket = base::connect_to(there.at("address"), there.at("port"), deadline);
  Hello hello{.secret = {}, .rank = rank};
  const auto secret = there.at("secret").get<std::string>();
  std::copy_n(secret.begin(), std::min(secret.size(), kSecretBytes), hello.secret.begin());
  // It fits into the socket's empty buffer.
  if (::send(socket.get(), &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) {
    throw SystemError(
        base::compose({.what = "cannot send to another machine", .evidence = base::errno_text(errno)}));
  }
  return socket;
}

}  // namespace

std::vector<Fd> connect(rendezvous::KeyStore& store, const std::vector<int>& ranks, int rank,
                        const std::string& address, Deadline deadline) {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank);
  const Fd listener = base::listen_on(base::Reach::Everyone, 0);
  const auto secret = base::make_nonce();
  const auto meeting = store.until(deadline);
  meeting->write(
      key_of(rank),
      nlohmann::json{{"address", address}, {"port", base::local_port(listener)}, {"secret", secret}}.dump());

  std::vector<Fd> sockets(ranks.size());
  for (auto other = ranks.begin(); other != mine; ++other) {
    const auto text = meeting->read({key_of(*other)}, [] {}).front();
    sockets[other - ranks.begin()] = connect_to(text, rank, deadline);
  }
  auto missing = ranks.end() - mine - 1;
  while (missing > 0) {
    if (deadline.expired()) {
      throw TimeoutError(base::compose({.what = "not all machines connected",
                                        .where = fmt::format("rank {}, {}", rank, address),
                                        .evidence = fmt::format("{} are missing", missing),
                                        .hint = "look at the output of the other ranks"}));
    }
    if (meeting->failure() || !meeting->ended(store::Ending::Lost).empty()) {
      throw PeerLostError("a rank ended while the machines were connecting");
    }
    pollfd waiting{listener.get(), POLLIN, 0};
    if (::poll(&waiting, 1, deadline.poll_timeout(kSlice)) <= 0) continue;
    Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    Hello hello{};
    if (!socket || !receive_all(socket, &hello, sizeof hello, Deadline::in(kHelloTime))) continue;
    const auto from = std::find(mine + 1, ranks.end(), hello.rank);
    if (std::memcmp(hello.secret.data(), secret.data(), kSecretBytes) != 0 || from == ranks.end()) continue;
    auto& place = sockets[from - ranks.begin()];
    if (place) continue;
    place = std::move(socket);
    --missing;
  }
  for (const auto& socket : sockets) {
    if (socket) base::prepare_for_messages(socket);
  }
  return sockets;
}

}  // namespace lockstep::wires
