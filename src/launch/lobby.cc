#include "launch/lobby.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include "base/error_text.h"
#include "base/host.h"

namespace lockstep::launch {

namespace {

using namespace std::chrono_literals;
using base::compose;
using base::Deadline;

// A caller that has not sent a hello within this time is dropped.
constexpr auto kHelloTime = 10s;
// If there are more, the oldest is dropped. Nodes of the job send their hello within a round trip, so it is
// not one of them.
constexpr size_t kMostStrangers = 256;
// So that callers are also served while new connections keep arriving.
constexpr int kMostAcceptedAtOnce = 64;
// For a refusal to be delivered.
constexpr auto kRefusalTime = 1s;
constexpr size_t kMostClosing = 64;
// After accept(2) failed because no descriptor was left.
constexpr auto kAcceptPause = 100ms;
constexpr int kMostStrangerWarnings = 20;

std::string address_of(const sockaddr_storage& address, socklen_t size) {
  char text[NI_MAXHOST];
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) != 0) {
    return "an unknown address";
  }
  const std::string name = text;
  return name.starts_with("::ffff:") ? name.substr(7) : name;  // IPv4 over the IPv6 socket
}

}  // namespace

Lobby::Lobby(base::Fd listener, uint16_t port, const base::Token& token, Warn warn)
    : listener_(std::move(listener)), port_(port), token_(token), warn_(std::move(warn)) {
  ::fcntl(listener_.get(), F_SETFL, ::fcntl(listener_.get(), F_GETFL) | O_NONBLOCK);
}

void Lobby::add_to(std::vector<pollfd>& waiting) const {
  const auto add = [&](const Connection& connection) {
    const int events = POLLIN | (connection.wants_to_write() ? POLLOUT : 0);
    waiting.push_back({connection.fd(), static_cast<short>(events), 0});
  };
  if (!accept_again_) waiting.push_back({listener_.get(), POLLIN, 0});
  for (const auto& stranger : strangers_) add(*stranger.connection);
  for (const auto& closing : closing_) add(*closing.connection);
}

std::chrono::milliseconds Lobby::longest_wait() const {
  std::chrono::milliseconds longest = 1h;
  if (accept_again_) longest = accept_again_->remaining();
  // The first entry of each list expires first.
  if (!strangers_.empty()) longest = std::min(longest, strangers_.front().until.remaining());
  if (!closing_.empty()) longest = std::min(longest, closing_.front().until.remaining());
  return longest;
}

std::vector<Caller> Lobby::serve() {
  if (accept_again_ && accept_again_->expired()) accept_again_.reset();
  if (!accept_again_) accept_some();

  std::vector<Caller> callers;
  auto strangers = std::move(strangers_);
  strangers_.clear();
  for (auto& stranger : strangers) {
    stranger.connection->flush();
    stranger.connection->receive();
    if (const auto line = stranger.connection->next_line()) {
      if (auto caller = check_hello(*line, std::move(stranger))) callers.push_back(std::move(*caller));
    } else if (!stranger.connection->open()) {
      const auto& trouble = stranger.connection->close_reason();
      warn_limited(stranger, "was closed without a hello" + (trouble.empty() ? "" : ": " + trouble));
    } else if (stranger.until.expired()) {
      warn_limited(stranger, fmt::format("sent no hello within {} s and was dropped", kHelloTime.count()));
    } else {
      strangers_.push_back(std::move(stranger));
    }
  }

  for (auto& closing : closing_) closing.connection->close_gracefully();
  std::erase_if(closing_,
                [](const auto& closing) { return !closing.connection->open() || closing.until.expired(); });
  return callers;
}

void Lobby::accept_some() {
  for (int turn = 0; turn < kMostAcceptedAtOnce; ++turn) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    base::Fd socket(::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size,
                              SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      challenge(std::move(socket), address_of(address, size));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      // The connection stays in the queue, so the listener stays readable: without a pause this would be a
      // busy loop.
      accept_again_ = Deadline::in(kAcceptPause);
      const auto why = base::errno_text(errno);
      if (strangers_.empty()) {
        warn_limited(
            fmt::format("cannot accept a connection to port {}: {}\nhint: raise ulimit -n", port_, why));
      }
      evict_oldest(why);
      return;
    }
    // On any other error, this connection has ended already: try the next one.
  }
}

void Lobby::challenge(base::Fd socket, std::string from) {
  if (strangers_.size() >= kMostStrangers) evict_oldest("there are too many such connections");
  Stranger stranger{.connection = std::make_unique<Connection>(std::move(socket)),
                    .from = std::move(from),
                    .nonce = base::make_nonce(),
                    .until = Deadline::in(kHelloTime)};
  stranger.connection->send(encode(Challenge{.nonce = stranger.nonce, .has_token = !token_.empty()}));
  strangers_.push_back(std::move(stranger));
}

std::optional<Caller> Lobby::check_hello(const std::string& line, Stranger stranger) {
  const auto hello = decode_hello(line);
  if (!hello) {
    warn_limited(stranger, "is not from a lockstep agent and was dropped");
    return std::nullopt;
  }
  const auto turn_away = [&](const std::string& why, const std::string& hint) {
    warn_limited(stranger, fmt::format("was refused: {}\nhint: {}", why, hint));
    refuse(std::move(stranger.connection), why, hint);
    return std::nullopt;
  };
  if (hello->version != kProtocolVersion) {
    return turn_away(
        fmt::format("it uses protocol version {}, this job version {}", hello->version, kProtocolVersion),
        "install the same version of lockstep on all nodes");
  }
  if (!token_.proves(hello->proof, kFollower, stranger.nonce, hello->nonce)) {
    const bool both = hello->has_token && !token_.empty();
    return turn_away(
        both             ? "its token is not that of this job"
        : token_.empty() ? "it has a token, and node 0 has none"
                         : "it has no token, and this job has one",
        "give all nodes the same token: --token-file FILE, LOCKSTEP_TOKEN or LOCKSTEP_TOKEN_FILE");
  }
  stranger.connection->trust();
  auto proof = token_.prove(kLeader, hello->nonce, stranger.nonce);
  return Caller{std::move(stranger.connection), *hello, std::move(proof)};
}

void Lobby::refuse(std::unique_ptr<Connection> connection, const std::string& why, const std::string& hint) {
  connection->send(
      encode(Refused{compose({.what = fmt::format("node 0 ({}) refused this node", base::host_name()),
                              .evidence = why,
                              .hint = hint}),
                     2}));
  connection->close_gracefully();
  if (closing_.size() >= kMostClosing) closing_.erase(closing_.begin());
  closing_.push_back({std::move(connection), Deadline::in(kRefusalTime)});
}

void Lobby::close() {
  strangers_.clear();
  listener_.reset();
  std::vector<std::unique_ptr<Connection>> rest;
  for (auto& closing : closing_) rest.push_back(std::move(closing.connection));
  closing_.clear();
  close_all_gracefully(rest, Deadline::in(200ms));
}

void Lobby::evict_oldest(const std::string& why) {
  if (strangers_.empty()) return;
  warn_limited(strangers_.front(), fmt::format("sent no hello and was dropped: {}", why));
  strangers_.erase(strangers_.begin());
}

void Lobby::warn_limited(const Stranger& stranger, const std::string& what) {
  warn_limited(fmt::format("a connection to port {} from {} {}", port_, stranger.from, what));
}

void Lobby::warn_limited(const std::string& text) {
  if (++warnings_ <= kMostStrangerWarnings) warn_(text);
  if (warnings_ == kMostStrangerWarnings) {
    warn_(fmt::format(
        "further connections to port {} that do not belong to this job are dropped without a warning",
        port_));
  }
}

}  // namespace lockstep::launch
