#include "network/reach.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fmt/format.h>
#include <list>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <lockstep/error.h>

#include "base/address.h"
#include "base/error_text.h"
#include "base/fd.h"
#include "base/net.h"

namespace lockstep::network {

namespace {

using namespace std::chrono_literals;
using base::Deadline;

constexpr size_t kNonceBytes = 32;
constexpr size_t kProofBytes = 64;
constexpr const char* kRole = "responder";
constexpr const char* kNoProof = "the program that listens there is not part of this job";

// Connections that have not sent their nonce yet. If there are more, the oldest is closed, but not within its
// first second: all other machines may connect at the same moment. Meanwhile the next ones wait in the
// kernel's queue.
constexpr size_t kMostCallers = 256;
constexpr auto kLeastTime = 1s;
constexpr auto kAcceptPause = 100ms;  // after accept(2) failed because no descriptor was left

base::AddrinfoList socket_address(const std::string& address, uint16_t port) {
  std::string why;
  auto list = base::resolve(address, port, SOCK_STREAM, why);
  if (!list) throw SystemError(base::compose({.what = "an address cannot be read", .evidence = why}));
  return list;
}

base::Fd listen_at(const std::string& address) {
  const auto target = socket_address(address, 0);
  base::Fd socket(::socket(target->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket || ::bind(socket.get(), target->ai_addr, target->ai_addrlen) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    throw SystemError(base::compose({.what = fmt::format("cannot listen at the address {}", address),
                                     .evidence = base::errno_text(errno)}));
  }
  return socket;
}

// Reads what is there, up to `most` bytes in total. Returns false if the connection has ended.
bool read_into(const base::Fd& socket, std::string& text, size_t most) {
  char buffer[kProofBytes];
  while (text.size() < most) {
    const ssize_t size = ::recv(socket.get(), buffer, std::min(most - text.size(), sizeof buffer), 0);
    if (size > 0) {
      text.append(buffer, static_cast<size_t>(size));
    } else if (size < 0 && errno == EINTR) {
      continue;
    } else {
      return size < 0 && errno == EAGAIN;
    }
  }
  return true;
}

// The first bytes of a connection always fit into its buffer.
bool write_all(const base::Fd& socket, const std::string& text) {
  return ::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

// One connection of try_to_reach().
class Attempt {
 public:
  explicit Attempt(const Target& target) : target_(target) {
    const auto info = socket_address(target.address, target.port);
    socket_.reset(::socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const bool failed = !socket_ || ::connect(socket_.get(), info->ai_addr, info->ai_addrlen) != 0;
    if (failed && errno != EINPROGRESS) end(base::errno_text(errno));
  }

  bool done() const { return !socket_; }
  const Reached& reached() const { return reached_; }
  pollfd polled() const { return {socket_.get(), static_cast<short>(connected_ ? POLLIN : POLLOUT), 0}; }

  // After poll(2) has reported an event.
  void go_on() {
    if (!connected_) return check_connection();
    const bool open = read_into(socket_, answer_, kProofBytes);
    if (answer_.size() == kProofBytes) {
      const bool proved = target_.secret.proves(answer_, kRole, nonce_, {});
      end(proved ? "" : kNoProof);
    } else if (!open) {
      end(kNoProof);
    }
  }

  // When time is up.
  void give_up(Deadline connected_by, Deadline answered_by) {
    const auto text = [](const char* what, Deadline deadline) {
      return fmt::format("{} within {:.1f} s", what, static_cast<double>(deadline.budget().count()) / 1000.0);
    };
    if (connected_ && answered_by.expired()) end(text("connected, but there was no answer", answered_by));
    if (!connected_ && connected_by.expired()) end(text("no connection", connected_by));
  }

 private:
  void check_connection() {
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return end(base::errno_text(error));
    connected_ = true;
    sockaddr_storage storage{};
    auto* address = reinterpret_cast<sockaddr*>(&storage);
    length = sizeof storage;
    if (::getsockname(socket_.get(), address, &length) == 0) reached_.from = base::address_text(address);
    if (!write_all(socket_, nonce_)) end(kNoProof);
  }

  // An empty text means success.
  void end(std::string why) {
    reached_.fault = std::move(why);
    socket_.reset();
  }

  const Target& target_;
  base::Fd socket_;
  bool connected_ = false;
  const std::string nonce_ = base::make_nonce();
  std::string answer_;
  Reached reached_;
};

}  // namespace

class Responder::Loop {
 public:
  Loop(const std::vector<std::string>& addresses, base::Token secret)
      : secret_(std::move(secret)), stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    for (const auto& address : addresses) {
      listeners_.push_back(listen_at(address));
      ports_.push_back(base::local_port(listeners_.back()));
    }
  }

  void run() {
    while (!wait()) {
      callers_.remove_if([this](Caller& caller) { return serve(caller); });
      for (const auto& listener : listeners_) accept_from(listener);
    }
  }

  void stop() { ::eventfd_write(stop_.get(), 1); }
  const std::vector<uint16_t>& ports() const { return ports_; }

 private:
  struct Caller {
    base::Fd socket;
    std::string nonce = {};
    Deadline safe_until = Deadline::in(kLeastTime);
  };

  // Returns true once stop() has been called.
  bool wait() {
    if (callers_.size() >= kMostCallers && callers_.front().safe_until.expired()) callers_.pop_front();
    const bool full = callers_.size() >= kMostCallers;
    const bool accepting = !full && pause_.expired();
    std::vector<pollfd> polled{{stop_.get(), POLLIN, 0}};
    for (const auto& listener : listeners_)
      polled.push_back({listener.get(), static_cast<short>(accepting ? POLLIN : 0), 0});
    for (const auto& caller : callers_) polled.push_back({caller.socket.get(), POLLIN, 0});
    const auto& next = full ? callers_.front().safe_until : pause_;
    ::poll(polled.data(), polled.size(), accepting ? -1 : next.poll_timeout());
    return polled[0].revents != 0;
  }

  void accept_from(const base::Fd& listener) {
    while (callers_.size() < kMostCallers && pause_.expired()) {
      base::Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket && (errno == EINTR || errno == ECONNABORTED)) continue;
      if (!socket && errno != EAGAIN) pause_ = Deadline::in(kAcceptPause);
      if (!socket) return;
      callers_.push_back({std::move(socket)});
    }
  }

  // Returns whether the connection is done with.
  bool serve(Caller& caller) const {
    if (!read_into(caller.socket, caller.nonce, kNonceBytes)) return true;
    if (caller.nonce.size() < kNonceBytes) return false;
    write_all(caller.socket, secret_.prove(kRole, caller.nonce, {}));
    return true;
  }

  const base::Token secret_;
  base::Fd stop_;
  std::vector<base::Fd> listeners_;
  std::vector<uint16_t> ports_;
  std::list<Caller> callers_;
  Deadline pause_ = Deadline::in(0ms);
};

Responder::Responder(const std::vector<std::string>& addresses, base::Token secret)
    : loop_(std::make_unique<Loop>(addresses, std::move(secret))), thread_([this] { loop_->run(); }) {}

Responder::~Responder() {
  loop_->stop();
  thread_.join();
}

const std::vector<uint16_t>& Responder::ports() const { return loop_->ports(); }

std::vector<Reached> try_to_reach(const std::vector<Target>& targets, Deadline connected_by,
                                  Deadline answered_by) {
  std::list<Attempt> attempts;
  for (const auto& target : targets) attempts.emplace_back(target);
  for (;;) {
    std::vector<pollfd> polled;
    std::vector<Attempt*> waiting;
    bool connecting = false;
    for (auto& attempt : attempts) {
      if (attempt.done()) continue;
      waiting.push_back(&attempt);
      polled.push_back(attempt.polled());
      connecting = connecting || polled.back().events == POLLOUT;
    }
    if (waiting.empty()) break;
    ::poll(polled.data(), polled.size(), (connecting ? connected_by : answered_by).poll_timeout());
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (polled[i].revents != 0) waiting[i]->go_on();
      if (!waiting[i]->done()) waiting[i]->give_up(connected_by, answered_by);
    }
  }
  std::vector<Reached> all;
  for (const auto& attempt : attempts) all.push_back(attempt.reached());
  return all;
}

}  // namespace lockstep::network
