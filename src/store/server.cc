#include "store/server.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <list>
#include <optional>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "base/deadline.h"
#include "base/net.h"
#include "store/address.h"
#include "store/forked.h"
#include "store/service.h"

namespace lockstep::store {

namespace {

using namespace std::chrono_literals;
using base::Deadline;

constexpr auto kHelloTime = 10s;
// Strangers are callers that have not proved the token yet. If there are too many, the oldest is dropped, but
// not within its first second: many ranks may connect at the same time.
constexpr size_t kMostStrangers = 256;
constexpr auto kLeastHelloTime = 1s;
constexpr int kAcceptsAtOnce = 32;
// After accept(2) failed because no descriptor was left.
constexpr auto kAcceptPause = 100ms;
// Reads from one caller before the others are served again.
constexpr int kReadsAtOnce = 64;

}  // namespace

class Server::Loop : public ClosedAfterFork {
 public:
  Loop(std::vector<base::Fd> listeners, base::Token token)
      : listeners_(std::move(listeners)),
        service_(std::move(token)),
        stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    for (const auto& listener : listeners_) {
      ::fcntl(listener.get(), F_SETFL, ::fcntl(listener.get(), F_GETFL) | O_NONBLOCK);
    }
  }

  void run() {
    for (;;) {
      if (wait()) return;
      accept_callers();
      for (auto& link : links_) receive(link);
      drop_strangers();
      service_.answer_waiting();
      // In reverse order of arrival: this process's own client connected first, and once it is served this
      // process may exit, and the server with it.
      for (auto link = links_.rbegin(); link != links_.rend(); ++link) send(*link);
      remove_closed();
    }
  }

  void stop() { ::eventfd_write(stop_.get(), 1); }

  void close_in_child() override {
    listeners_.clear();
    for (auto& link : links_) link.socket.reset();
  }

 private:
  struct Link {
    base::Fd socket;
    Service::Caller& caller;
    Deadline hello_due = Deadline::in(kHelloTime);
    Deadline safe_until = Deadline::in(kLeastHelloTime);
  };

  bool accepting() const { return !accept_again_ || accept_again_->expired(); }

  // Returns true once stop() has been called.
  bool wait() {
    std::vector<pollfd> polled{{stop_.get(), POLLIN, 0}};
    for (const auto& listener : listeners_) {
      polled.push_back({listener.get(), static_cast<short>(accepting() ? POLLIN : 0), 0});
    }
    auto next = service_.next_deadline().value_or(Deadline::in(1h));
    const auto earliest = [&](const Deadline& at) {
      if (at.remaining() < next.remaining()) next = at;
    };
    if (!accepting()) earliest(*accept_again_);
    for (const auto& link : links_) {
      const int events = POLLIN | (link.caller.outgoing.empty() ? 0 : POLLOUT);
      polled.push_back({link.socket.get(), static_cast<short>(events), 0});
      if (!link.caller.admitted) earliest(link.hello_due);
    }
    ::poll(polled.data(), polled.size(), next.poll_timeout());
    return polled[0].revents != 0;
  }

  void accept_callers() {
    if (!accepting()) return;
    accept_again_.reset();
    for (const auto& listener : listeners_) {
      for (int i = 0; i < kAcceptsAtOnce; ++i) {
        if (strangers() >= kMostStrangers && !make_room()) {
          accept_again_ = Deadline::in(kAcceptPause);  // new connections wait in the kernel's queue
          return;
        }
        base::Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!socket && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (!socket && errno == EAGAIN) break;
        if (!socket) {
          accept_again_ = Deadline::in(kAcceptPause);
          return;
        }
        if (!is_own_user(socket)) continue;
        base::prepare_for_messages(socket);
        const auto lock = no_forks();
        links_.push_back({.socket = std::move(socket), .caller = service_.add()});
      }
    }
  }

  size_t strangers() const {
    return static_cast<size_t>(
        std::count_if(links_.begin(), links_.end(), [](const Link& link) { return !link.caller.admitted; }));
  }

  bool make_room() {
    const auto oldest =
        std::find_if(links_.begin(), links_.end(), [](const Link& link) { return !link.caller.admitted; });
    if (oldest == links_.end() || !oldest->safe_until.expired()) return false;
    service_.remove(oldest->caller);
    const auto lock = no_forks();
    links_.erase(oldest);
    return true;
  }

  void drop_strangers() {
    for (auto& link : links_) {
      if (!link.caller.admitted && link.hello_due.expired()) service_.end(link.caller);
    }
  }

  void receive(Link& link) {
    char bytes[16 * 1024];
    for (int i = 0; i < kReadsAtOnce && !link.caller.closed; ++i) {
      const ssize_t size = ::recv(link.socket.get(), bytes, sizeof bytes, 0);
      if (size > 0) {
        service_.hear(link.caller, bytes, static_cast<size_t>(size));
      } else if (size < 0 && errno == EAGAIN) {
        return;
      } else if (size == 0 || errno != EINTR) {
        service_.end(link.caller);
      }
    }
  }

  // Also to callers that are being dropped, as far as the kernel accepts the bytes now.
  void send(Link& link) {
    auto& bytes = link.caller.outgoing;
    while (!bytes.empty()) {
      const ssize_t sent = ::send(link.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent >= 0) {
        bytes.erase(0, static_cast<size_t>(sent));
      } else if (errno == EAGAIN) {
        return;
      } else if (errno != EINTR) {
        return service_.end(link.caller);
      }
    }
  }

  void remove_closed() {
    const auto lock = no_forks();
    links_.remove_if([this](Link& link) {
      if (!link.caller.closed) return false;
      service_.remove(link.caller);
      return true;
    });
  }

  std::vector<base::Fd> listeners_;
  Service service_;
  const base::Fd stop_;
  std::list<Link> links_;  // in order of arrival
  std::optional<Deadline> accept_again_;
};

Server::Server(std::vector<base::Fd> listeners, base::Token token)
    : loop_(std::make_unique<Loop>(std::move(listeners), std::move(token))), thread_([loop = loop_.get()] {
        ::pthread_setname_np(::pthread_self(), "store-server");
        loop->run();
      }) {}

Server::~Server() {
  if (loop_->in_child()) {  // the thread exists only in the parent
    thread_.detach();
    static_cast<void>(loop_.release());
    return;
  }
  loop_->stop();
  thread_.join();
}

}  // namespace lockstep::store
