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

// A caller that has not introduced itself by then is not one of ours.
constexpr auto kHelloTime = 10s;
// With more, the oldest has to go. Ours speak within a round trip, so it is not one of them.
constexpr size_t kMostStrangers = 256;
// So that callers are also heard while others keep coming.
constexpr int kMostAcceptedAtOnce = 64;
// For a refusal to arrive.
constexpr auto kLeaveTime = 1s;
constexpr size_t kMostLeaving = 64;
// When the kernel has no descriptor for another connection.
constexpr auto kAcceptPause = 100ms;
constexpr int kMostStrangersTold = 20;

std::string address_of(const sockaddr_storage& address, socklen_t size) {
  char text[NI_MAXHOST];
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) != 0) {
    return "an unknown address";
  }
  const std::string name = text;
  return name.starts_with("::ffff:") ? name.substr(7) : name;  // IPv4 through our socket for both
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
  for (const auto& leaving : leaving_) add(*leaving.connection);
}

std::chrono::milliseconds Lobby::patience() const {
  std::chrono::milliseconds longest = 1h;
  if (accept_again_) longest = accept_again_->remaining();
  // The first of each list is the first to be due.
  if (!strangers_.empty()) longest = std::min(longest, strangers_.front().until.remaining());
  if (!leaving_.empty()) longest = std::min(longest, leaving_.front().until.remaining());
  return longest;
}

std::vector<Caller> Lobby::hear() {
  if (accept_again_ && accept_again_->expired()) accept_again_.reset();
  if (!accept_again_) accept_some();

  std::vector<Caller> callers;
  auto strangers = std::move(strangers_);
  strangers_.clear();
  for (auto& stranger : strangers) {
    stranger.connection->flush();
    stranger.connection->receive();
    if (const auto line = stranger.connection->next_line()) {
      if (auto caller = judge(*line, std::move(stranger))) callers.push_back(std::move(*caller));
    } else if (!stranger.connection->open()) {
      const auto& trouble = stranger.connection->trouble();
      complain(stranger, "closed without introducing itself" + (trouble.empty() ? "" : ": " + trouble));
    } else if (stranger.until.expired()) {
      complain(stranger,
               fmt::format("did not introduce itself within {} s and was dropped", kHelloTime.count()));
    } else {
      strangers_.push_back(std::move(stranger));
    }
  }

  for (auto& leaving : leaving_) leaving.connection->part();
  std::erase_if(leaving_,
                [](const auto& leaving) { return !leaving.connection->open() || leaving.until.expired(); });
  return callers;
}

void Lobby::accept_some() {
  for (int turn = 0; turn < kMostAcceptedAtOnce; ++turn) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    base::Fd socket(::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size,
                              SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      ask(std::move(socket), address_of(address, size));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      // The connection stays in the queue and the listener readable: asking again at once would be all we do.
      accept_again_ = Deadline::in(kAcceptPause);
      const auto why = base::errno_text(errno);
      if (strangers_.empty()) {
        complain(fmt::format("cannot accept a connection to port {}: {}\nhint: raise ulimit -n", port_, why));
      }
      evict_oldest(why);
      return;
    }
    // Otherwise this one has gone again; the next may be well.
  }
}

void Lobby::ask(base::Fd socket, std::string from) {
  if (strangers_.size() >= kMostStrangers) evict_oldest("there are too many like it");
  Stranger stranger{.connection = std::make_unique<Connection>(std::move(socket)),
                    .from = std::move(from),
                    .nonce = base::make_nonce(),
                    .until = Deadline::in(kHelloTime)};
  stranger.connection->send(encode(Challenge{.nonce = stranger.nonce, .has_token = !token_.empty()}));
  strangers_.push_back(std::move(stranger));
}

std::optional<Caller> Lobby::judge(const std::string& line, Stranger stranger) {
  const auto hello = decode_hello(line);
  if (!hello) {
    complain(stranger, "is not from a lockstep agent and was dropped");
    return std::nullopt;
  }
  const auto turn_away = [&](const std::string& why, const std::string& hint) {
    complain(stranger, fmt::format("was refused: {}\nhint: {}", why, hint));
    refuse(std::move(stranger.connection), why, hint);
    return std::nullopt;
  };
  if (hello->version != kProtocolVersion) {
    return turn_away(fmt::format("it speaks protocol {}, this one {}", hello->version, kProtocolVersion),
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
  connection->part();
  if (leaving_.size() >= kMostLeaving) leaving_.erase(leaving_.begin());
  leaving_.push_back({std::move(connection), Deadline::in(kLeaveTime)});
}

void Lobby::close() {
  strangers_.clear();
  listener_.reset();
  std::vector<std::unique_ptr<Connection>> rest;
  for (auto& leaving : leaving_) rest.push_back(std::move(leaving.connection));
  leaving_.clear();
  part_from_all(rest, Deadline::in(200ms));
}

void Lobby::evict_oldest(const std::string& why) {
  if (strangers_.empty()) return;
  complain(strangers_.front(), fmt::format("did not introduce itself and was dropped: {}", why));
  strangers_.erase(strangers_.begin());
}

void Lobby::complain(const Stranger& stranger, const std::string& what) {
  complain(fmt::format("a connection to port {} from {} {}", port_, stranger.from, what));
}

void Lobby::complain(const std::string& text) {
  if (++complaints_ <= kMostStrangersTold) warn_(text);
  if (complaints_ == kMostStrangersTold) {
    warn_(fmt::format("more that do not belong to this job are turned away from port {} without a word",
                      port_));
  }
}

}  // namespace lockstep::launch
