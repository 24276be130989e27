#include "wires/connect.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
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
constexpr std::chrono::milliseconds kSlice = 20ms;
// Connections that have not said yet whose they are. The oldest makes room for a new one.
constexpr size_t kMostGuests = 256;

// The first bytes on a connection.
struct Hello {
  std::array<char, kSecretBytes> secret;  // of the rank that is connected to
  int32_t rank;                           // that connects
};

std::string key_of(int rank) { return fmt::format("wires/{}", rank); }

// Accepts connections, without waiting for any single one.
class Reception {
 public:
  explicit Reception(const Fd& listener) : listener_(listener) {}

  // Waits a moment for connections and their first bytes. Calls `welcome` with each that is complete.
  template <class Welcome>
  void attend(Deadline deadline, const Welcome& welcome) {
    std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}};
    for (const auto& guest : guests_) polled.push_back({guest.socket.get(), POLLIN, 0});
    if (::poll(polled.data(), polled.size(), deadline.poll_timeout(kSlice)) <= 0) return;
    std::erase_if(guests_, [&](Guest& guest) { return hear(guest, welcome); });
    if (polled.front().revents == 0) return;
    Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    if (guests_.size() == kMostGuests) guests_.erase(guests_.begin());
    guests_.push_back({.socket = std::move(socket)});
  }

 private:
  struct Guest {
    Fd socket;
    Hello hello = {};
    size_t heard = 0;  // bytes
  };

  // Returns whether nothing more is expected.
  template <class Welcome>
  static bool hear(Guest& guest, const Welcome& welcome) {
    const auto got = ::recv(guest.socket.get(), reinterpret_cast<char*>(&guest.hello) + guest.heard,
                            sizeof guest.hello - guest.heard, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0) return true;
    guest.heard += static_cast<size_t>(got);
    if (guest.heard < sizeof guest.hello) return false;
    welcome(guest.hello, std::move(guest.socket));
    return true;
  }

  const Fd& listener_;
  std::vector<Guest> guests_;
};

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
  // A connection may be gone before it is accepted.
  ::fcntl(listener.get(), F_SETFL, ::fcntl(listener.get(), F_GETFL) | O_NONBLOCK);
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
  Reception reception(listener);
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
    reception.attend(deadline, [&](const Hello& hello, Fd socket) {
      const auto from = std::find(mine + 1, ranks.end(), hello.rank);
      if (std::memcmp(hello.secret.data(), secret.data(), kSecretBytes) != 0 || from == ranks.end()) return;
      auto& place = sockets[from - ranks.begin()];
      if (place) return;
      place = std::move(socket);
      --missing;
    });
  }
  for (const auto& socket : sockets) {
    if (socket) base::prepare_for_messages(socket);
  }
  return sockets;
}

}  // namespace lockstep::wires
