#include "store/server.h"

#include <algorithm>
#include <cerrno>
#include <fmt/format.h>
#include <list>
#include <map>
#include <optional>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/deadline.h"
#include "base/log.h"
#include "store/address.h"
#include "store/forked.h"
#include "store/protocol.h"
#include "store/table.h"
#include "store/wire.h"

namespace lockstep::store {

namespace {

using namespace std::chrono_literals;
using base::Deadline;

constexpr auto kHelloTime = 10s;
// Strangers are those who have not proved anything yet. When there are too many, the oldest makes room; but
// not before it had a moment to speak: many ranks may arrive at once.
constexpr size_t kMostStrangers = 256;
constexpr auto kMomentToSpeak = 1s;
constexpr int kAcceptsAtOnce = 32;
// When the process may open no more descriptors.
constexpr auto kAcceptPause = 100ms;
// For a client that asks and does not read the answers.
constexpr size_t kMostUnreadBytes = 4 * kMostFrameBytes;

Writer news(News what, int rank, const std::string& topic = "", const std::string& text = "") {
  Writer message;
  message.number(0).number(static_cast<int64_t>(what)).number(rank).text(topic).text(text);
  return message;
}

}  // namespace

class Server::Loop : public ClosedAfterFork {
 public:
  Loop(std::vector<base::Fd> listeners, base::Token token)
      : listeners_(std::move(listeners)),
        token_(std::move(token)),
        stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  void run() {
    while (!stopped_) {
      wait();
      accept_callers();
      for (auto& caller : callers_) serve(caller);
      answer_waiting();
      turn_out_strangers();
      remove_closed();
    }
  }

  void stop() { ::eventfd_write(stop_.get(), 1); }

  void close_in_child() override {
    listeners_.clear();
    for (auto& caller : callers_) caller.socket.reset();
  }

 private:
  struct Caller {
    base::Fd socket;
    std::string nonce = base::make_nonce();
    Deadline patience = Deadline::in(kHelloTime);
    Deadline moment = Deadline::in(kMomentToSpeak);
    Frames incoming = {};
    std::string outgoing = {};
    bool admitted = false;
    int rank = -1;
    bool said_bye = false;
  };

  struct Waiting {
    Caller* caller;
    int64_t request;
    std::vector<std::string> keys;
    Deadline deadline;
  };

  void remove_closed() {
    const auto lock = no_forks();
    callers_.remove_if([this](Caller& caller) {
      if (caller.socket) return false;
      std::erase_if(waiting_, [&](const Waiting& waiting) { return waiting.caller == &caller; });
      return true;
    });
  }

  void close(Caller& caller) {
    const auto lock = no_forks();
    caller.socket.reset();
  }

  void wait() {
    std::vector<pollfd> polled{{stop_.get(), POLLIN, 0}};
    const bool accepting = !accept_again_ || accept_again_->expired();
    for (const auto& listener : listeners_)
      polled.push_back({listener.get(), static_cast<short>(accepting ? POLLIN : 0), 0});
    Deadline next = Deadline::in(1h);
    const auto earliest = [&](const Deadline& at) {
      if (at.remaining() < next.remaining()) next = at;
    };
    if (!accepting) earliest(*accept_again_);
    for (const auto& waiting : waiting_) earliest(waiting.deadline);
    for (const auto& caller : callers_) {
      const int events = POLLIN | (caller.outgoing.empty() ? 0 : POLLOUT);
      polled.push_back({caller.socket.get(), static_cast<short>(events), 0});
      if (!caller.admitted) earliest(caller.patience);
    }
    ::poll(polled.data(), polled.size(), next.poll_timeout());
    stopped_ = polled[0].revents != 0;
  }

  void accept_callers() {
    if (accept_again_ && !accept_again_->expired()) return;
    accept_again_.reset();
    for (const auto& listener : listeners_) {
      for (int i = 0; i < kAcceptsAtOnce; ++i) {
        if (strangers() >= kMostStrangers && !make_room()) {
          accept_again_ = Deadline::in(kAcceptPause);  // they wait at the door, where the kernel keeps them
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
        prepare(socket);
        auto& caller = add(std::move(socket));
        say(caller, Writer().text(kMagic).number(kVersion).text(caller.nonce));
      }
    }
  }

  Caller& add(base::Fd socket) {
    const auto lock = no_forks();
    return callers_.emplace_back(Caller{.socket = std::move(socket)});
  }

  size_t strangers() const {
    return static_cast<size_t>(std::count_if(callers_.begin(), callers_.end(),
                                             [](const Caller& caller) { return !caller.admitted; }));
  }

  bool make_room() {
    const auto oldest = std::find_if(callers_.begin(), callers_.end(),
                                     [](const Caller& caller) { return !caller.admitted && caller.socket; });
    if (oldest == callers_.end() || !oldest->moment.expired()) return false;
    const auto lock = no_forks();
    callers_.erase(oldest);
    return true;
  }

  void turn_out_strangers() {
    for (auto& caller : callers_) {
      if (!caller.admitted && caller.patience.expired()) close(caller);
    }
  }

  void serve(Caller& caller) {
    flush(caller);
    char bytes[16 * 1024];
    // Not without end: the others want to be served, too.
    for (int i = 0; i < 64 && caller.socket; ++i) {
      const ssize_t size = ::recv(caller.socket.get(), bytes, sizeof bytes, 0);
      if (size < 0 && errno == EINTR) continue;
      if (size < 0 && errno == EAGAIN) return;
      if (size <= 0) return lose(caller);
      caller.incoming.add(bytes, static_cast<size_t>(size));
      try {
        while (const auto frame = caller.incoming.next(caller.admitted ? kMostFrameBytes : kMostHelloBytes)) {
          hear(caller, Reader(*frame));
          if (!caller.socket) return;
        }
      } catch (const Malformed&) {
        return lose(caller);
      }
    }
  }

  void hear(Caller& caller, Reader message) {
    if (caller.admitted) return answer(caller, message);
    const auto rank = message.number();
    const auto nonce = message.text();
    const auto proof = message.text();
    message.end();
    if (rank < 0 || rank > (1 << 24)) throw Malformed();
    if (!token_.proves(proof, "client", caller.nonce, nonce)) {
      say(caller, Writer().text("its token is not the job's").text(""));
      return close(caller);
    }
    caller.admitted = true;
    caller.rank = static_cast<int>(rank);
    say(caller, Writer().text("").text(token_.prove("server", nonce, caller.nonce)));
    for (const auto& [ended, how] : ended_) say(caller, news(how, ended));
    for (const auto& [topic, failure] : failures_) tell_failure(caller, topic, failure);
  }

  void answer(Caller& caller, Reader& message) {
    const auto request = message.number();
    const auto ask = static_cast<Ask>(message.number());
    const auto done = [&](Outcome outcome = Outcome::Done) {
      message.end();
      Writer answer;
      answer.number(request).number(static_cast<int64_t>(outcome));
      return answer;
    };
    switch (ask) {
      case Ask::Set: {
        const auto key = message.text();
        auto value = message.text();
        auto reply = done();
        table_.set(key, std::move(value));
        return say(caller, reply);
      }
      case Ask::CompareSet: {
        const auto key = message.text();
        const auto expected = message.text();
        auto wanted = message.text();
        auto reply = done();
        return say(caller, reply.text(table_.compare_set(key, expected, std::move(wanted))));
      }
      case Ask::Get: {
        auto keys = message.texts();
        const auto milliseconds = std::clamp<int64_t>(message.number(), 0, int64_t{1} << 40);
        message.end();
        // Answered with all others that wait, at once if it can be.
        waiting_.push_back(
            {&caller, request, std::move(keys), Deadline::in(std::chrono::milliseconds(milliseconds))});
        return;
      }
      case Ask::Add: {
        const auto key = message.text();
        const auto amount = message.number();
        auto reply = done();
        return say(caller, reply.number(table_.add(key, amount)));
      }
      case Ask::Check: {
        const auto keys = message.texts();
        auto reply = done();
        return say(caller, reply.number(table_.has(keys) ? 1 : 0));
      }
      case Ask::Erase: {
        const auto key = message.text();
        auto reply = done();
        return say(caller, reply.number(table_.erase(key) ? 1 : 0));
      }
      case Ask::Count: {
        auto reply = done();
        return say(caller, reply.number(table_.count()));
      }
      case Ask::Forget: {
        const auto prefix = message.text();
        const auto holders = message.number();
        message.end();
        if (table_.forget(prefix, holders)) failures_.erase(prefix);
        return;
      }
      case Ask::Fail: {
        const auto topic = message.text();
        auto text = message.text();
        auto reply = done();
        if (const auto [at, first] = failures_.try_emplace(topic, caller.rank, std::move(text)); first) {
          for (auto& other : callers_) {
            if (other.admitted) tell_failure(other, topic, at->second);
          }
        }
        return say(caller, reply);
      }
      case Ask::Bye: {
        auto reply = done();
        caller.said_bye = true;
        announce(caller.rank, News::Left);
        return say(caller, reply);
      }
    }
    throw Malformed();
  }

  void answer_waiting() {
    std::erase_if(waiting_, [this](const Waiting& waiting) {
      const auto values = table_.get(waiting.keys);
      if (!values && !waiting.deadline.expired()) return false;
      Writer answer;
      answer.number(waiting.request)
          .number(static_cast<int64_t>(values ? Outcome::Done : Outcome::TimedOut))
          .texts(values.value_or(std::vector<std::string>{}));
      say(*waiting.caller, answer);
      return true;
    });
  }

  void tell_failure(Caller& caller, const std::string& topic, const std::pair<int, std::string>& failure) {
    say(caller, news(News::Failed, failure.first, topic, failure.second));
  }

  void announce(int rank, News how) {
    if (!ended_.try_emplace(rank, how).second) return;
    for (auto& caller : callers_) {
      if (caller.admitted) say(caller, news(how, rank));
    }
  }

  void lose(Caller& caller) {
    close(caller);
    if (caller.admitted && !caller.said_bye) announce(caller.rank, News::Lost);
  }

  void say(Caller& caller, const Writer& message) {
    if (!caller.socket) return;
    caller.outgoing += message.frame();
    flush(caller);
    if (caller.outgoing.size() > kMostUnreadBytes) lose(caller);
  }

  void flush(Caller& caller) {
    while (caller.socket && !caller.outgoing.empty()) {
      const ssize_t sent =
          ::send(caller.socket.get(), caller.outgoing.data(), caller.outgoing.size(), MSG_NOSIGNAL);
      if (sent >= 0) {
        caller.outgoing.erase(0, static_cast<size_t>(sent));
      } else if (errno == EAGAIN) {
        return;
      } else if (errno != EINTR) {
        return lose(caller);
      }
    }
  }

  std::vector<base::Fd> listeners_;
  const base::Token token_;
  const base::Fd stop_;
  bool stopped_ = false;
  std::list<Caller> callers_;  // in order of arrival; their addresses stay
  std::optional<Deadline> accept_again_;
  std::vector<Waiting> waiting_;
  Table table_;
  std::map<int, News> ended_;
  std::map<std::string, std::pair<int, std::string>> failures_;  // by topic: the first rank and its words
};

Server::Server(std::vector<base::Fd> listeners, base::Token token)
    : loop_(std::make_unique<Loop>(std::move(listeners), std::move(token))), thread_([loop = loop_.get()] {
        ::pthread_setname_np(::pthread_self(), "store-server");
        loop->run();
      }) {}

Server::~Server() {
  if (loop_->in_child()) {  // there is no such thread here
    thread_.detach();
    loop_.release();
    return;
  }
  loop_->stop();
  thread_.join();
}

}  // namespace lockstep::store
