#include "store/client.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <fmt/format.h>
#include <mutex>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <thread>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/host.h"
#include "base/log.h"
#include "store/forked.h"
#include "store/handshake.h"
#include "store/protocol.h"
#include "store/wire.h"

namespace lockstep::store {

namespace {

using namespace std::chrono_literals;
using base::Deadline;

// The time to send a message that has no answer.
constexpr auto kNotifyTime = 1s;
// Beyond the deadline, for the server's own timeout answer, which has the better error message.
constexpr auto kMargin = 100ms;
constexpr auto kForEver = std::chrono::years(10);

}  // namespace

class Client::Connection : public ClosedAfterFork {
 public:
  Connection(const Address& address, const base::Token& token, int rank, Deadline deadline)
      : where_(fmt::format("rank {}, host {}, store at {}", rank, base::host_name(), address.describe())),
        socket_(admitted_socket(address, token, rank, deadline, incoming_)) {
    thread_ = std::thread([this] {
      ::pthread_setname_np(::pthread_self(), "store-client");
      read();
    });
    all().add(this);
  }

  ~Connection() override {
    all().remove(this);
    if (in_child()) {  // the thread exists only in the parent
      thread_.detach();
      return;
    }
    ::shutdown(socket_.get(), SHUT_RDWR);
    thread_.join();
  }

  void close_in_child() override { socket_.reset(); }

  // Sends the request, waits for the answer, and returns what `read` extracts from it.
  template <class Arguments, class Read>
  auto request(Ask ask, Deadline deadline, const GiveUp& give_up, Arguments&& arguments, Read&& read) {
    if (in_child()) {
      throw UsageError(base::compose({.what = "a forked child cannot use its parent's store",
                                      .where = where_,
                                      .hint = "only the process that joined the job may use its groups"}));
    }
    const int64_t id = ++last_id_;
    {
      const std::lock_guard lock(mutex_);
      answers_.emplace(id, std::nullopt);
    }
    const ForgetAnswer forget_at_return{*this, id};
    Writer message;
    message.number(id).number(static_cast<int64_t>(ask));
    arguments(message);
    const auto frame = message.frame();
    if (frame.size() > kMostFrameBytes) {
      throw UsageError(
          base::compose({.what = "the request is too large for the store",
                         .where = where_,
                         .evidence = fmt::format("{} bytes, at most {}", frame.size(), kMostFrameBytes),
                         .hint = "send large data with the group's collectives"}));
    }
    send(frame, deadline);
    const auto answer = wait_for(id, deadline, give_up);
    Reader reader(answer);
    try {
      const auto outcome = static_cast<Outcome>(reader.number());
      if (outcome == Outcome::TimedOut) throw_timeout(deadline, "the awaited keys did not appear");
      return read(reader);
    } catch (const Malformed& error) {
      throw PeerLostError(base::compose(
          {.what = "the store where the ranks meet is gone", .where = where_, .evidence = error.what()}));
    }
  }

  // Sends a request that has no answer. Blocks for kNotifyTime at most.
  void notify(const std::function<void(Writer&)>& arguments) noexcept {
    try {
      if (in_child()) return;
      Writer message;
      message.number(++last_id_);
      arguments(message);
      send(message.frame(), Deadline::in(kNotifyTime));
    } catch (const std::exception& error) {
      base::log_debug("cannot notify the store: {}", error.what());
    }
  }

  void send_bye(Deadline deadline) noexcept {
    try {
      request(
          Ask::Bye, deadline, {}, [](Writer&) {}, [](Reader&) { return true; });
    } catch (const std::exception& error) {
      base::log_debug("cannot send Bye to the store: {}", error.what());
    }
  }

  std::optional<Failure> failure(const std::string& topic) const {
    const std::lock_guard lock(mutex_);
    const auto found = failures_.find(topic);
    return found == failures_.end() ? std::nullopt : std::optional(found->second);
  }

  void forget_failures(const std::string& prefix) {
    const std::lock_guard lock(mutex_);
    std::erase_if(failures_, [&](const auto& failed) { return is_topic_of(prefix, failed.first); });
  }

  std::map<int, Ended> ended() const {
    const std::lock_guard lock(mutex_);
    return ended_;
  }

  uint64_t subscribe(std::function<void()> on_news) {
    const std::lock_guard lock(subscriptions_mutex_);
    subscriptions_.emplace(++last_subscription_, std::move(on_news));
    return last_subscription_;
  }

  void unsubscribe(uint64_t subscription) {
    const std::lock_guard lock(subscriptions_mutex_);
    subscriptions_.erase(subscription);
  }

  // All connections of this process, to send Bye at its exit.
  class All {
   public:
    All() {
      ::on_exit(
          [](int status, void*) {
            if (status == 0) all().send_bye();
          },
          nullptr);
    }
    void add(Connection* one) {
      const std::lock_guard lock(mutex_);
      all_.push_back(one);
    }
    void remove(Connection* one) {
      const std::lock_guard lock(mutex_);
      std::erase(all_, one);
    }
    void send_bye() noexcept {
      const std::lock_guard lock(mutex_);
      for (auto* one : all_) {
        if (!one->in_child()) one->send_bye(Deadline::in(200ms));
      }
    }

   private:
    std::mutex mutex_;
    std::vector<Connection*> all_;
  };
  static All& all() {
    static auto* const instance = new All;
    return *instance;
  }

 private:
  struct ForgetAnswer {
    Connection& connection;
    int64_t id;
    ~ForgetAnswer() {
      const std::lock_guard lock(connection.mutex_);
      connection.answers_.erase(id);
    }
  };

  [[noreturn]] void throw_timeout(Deadline deadline, const std::string& evidence) const {
    throw TimeoutError(base::compose(
        {.what = fmt::format("the store gave no answer within {:.1f} s",
                             static_cast<double>(deadline.budget().count()) / 1000.0),
         .where = where_,
         .evidence = evidence,
         .hint = "look at the output of the other ranks; a slow start needs a longer timeout"}));
  }

  [[noreturn]] void throw_gone() const {
    throw PeerLostError(base::compose({.what = "the store where the ranks meet is gone",
                                       .where = where_,
                                       .evidence = gone_,
                                       .hint = "look at the output of rank 0, which hosts it"}));
  }

  void send(const std::string& frame, Deadline deadline) {
    const std::lock_guard lock(send_mutex_);
    size_t sent = 0;
    while (sent < frame.size()) {
      const ssize_t size = ::send(socket_.get(), frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL);
      if (size >= 0) {
        sent += static_cast<size_t>(size);
      } else if (errno == EAGAIN && !deadline.expired()) {
        pollfd waiting{socket_.get(), POLLOUT, 0};
        ::poll(&waiting, 1, deadline.poll_timeout());
      } else if (errno == EAGAIN) {
        // After a partial frame the server could not find the beginning of the next one.
        if (sent != 0) ::shutdown(socket_.get(), SHUT_RDWR);
        throw_timeout(deadline, "rank 0, which hosts it, accepts no requests: it is stopped or overloaded");
      } else if (errno != EINTR) {
        const int error = errno;
        const std::lock_guard state(mutex_);
        if (gone_.empty()) gone_ = base::errno_text(error);
        throw_gone();
      }
    }
  }

  std::string wait_for(int64_t id, Deadline deadline, const GiveUp& give_up) {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (auto& answer = answers_.at(id)) return std::move(*answer);
      if (!gone_.empty()) throw_gone();
      const auto news_before = news_count_;
      if (give_up) {
        lock.unlock();
        give_up();
        lock.lock();
      }
      if (!changed_.wait_for(lock, deadline.remaining() + kMargin, [&] {
            return answers_.at(id) || !gone_.empty() || news_count_ != news_before;
          })) {
        throw_timeout(deadline, "rank 0, which hosts it, does not answer: it is stopped or overloaded");
      }
    }
  }

  // Runs on the background thread.
  void read() {
    std::string why = "its process has ended";
    try {
      for (;;) {
        while (const auto frame = incoming_.next(kMostFrameBytes)) on_frame(*frame);
        if (!receive(socket_, incoming_, Deadline::in(kForEver), &why)) break;
      }
    } catch (const Malformed& error) {
      why = error.what();
    }
    {
      const std::lock_guard lock(mutex_);
      if (gone_.empty()) gone_ = why;
      // Unless it sent Bye before.
      ended_.try_emplace(kHostRank, Ended{Ending::Lost, Deadline::Clock::now()});
    }
    publish_news();
  }

  void on_frame(const std::string& frame) {
    Reader message(frame);
    const auto id = message.number();
    if (id != 0) {
      const std::lock_guard lock(mutex_);
      // A request that has timed out has no entry any more.
      if (const auto found = answers_.find(id); found != answers_.end()) found->second = frame.substr(8);
      changed_.notify_all();
      return;
    }
    const auto what = static_cast<News>(message.number());
    const auto rank = static_cast<int>(message.number());
    const auto topic = message.text();
    {
      const std::lock_guard lock(mutex_);
      if (what == News::Failed) {
        failures_.try_emplace(topic, Failure{rank, message.text(), Deadline::Clock::now()});
      } else {
        ended_.try_emplace(rank,
                           Ended{what == News::Left ? Ending::Left : Ending::Lost, Deadline::Clock::now()});
      }
    }
    publish_news();
  }

  void publish_news() {
    {
      const std::lock_guard lock(mutex_);
      ++news_count_;
      changed_.notify_all();
    }
    const std::lock_guard lock(subscriptions_mutex_);
    for (const auto& [id, on_news] : subscriptions_) on_news();
  }

  const std::string where_;
  Frames incoming_;
  base::Fd socket_;
  std::thread thread_;
  std::atomic<int64_t> last_id_{0};
  std::mutex send_mutex_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, std::optional<std::string>> answers_;  // by request; nullopt until the answer arrives
  std::map<std::string, Failure> failures_;
  std::map<int, Ended> ended_;
  uint64_t news_count_ = 0;
  std::string gone_;  // why the connection to the server ended; empty while it exists

  std::mutex subscriptions_mutex_;
  std::map<uint64_t, std::function<void()>> subscriptions_;
  uint64_t last_subscription_ = 0;
};

Client::Client(const Address& address, const base::Token& token, int rank, Deadline deadline)
    : connection_(std::make_unique<Connection>(address, token, rank, deadline)) {}
Client::~Client() = default;

void Client::set(const std::string& key, const std::string& value, Deadline deadline) {
  connection_->request(
      Ask::Set, deadline, {}, [&](Writer& message) { message.text(key).text(value); },
      [](Reader&) { return true; });
}

std::string Client::compare_set(const std::string& key, const std::string& expected,
                                const std::string& wanted, Deadline deadline) {
  return connection_->request(
      Ask::CompareSet, deadline, {}, [&](Writer& message) { message.text(key).text(expected).text(wanted); },
      [](Reader& answer) { return answer.text(); });
}

Client::Values Client::get(const Values& keys, Deadline deadline, const GiveUp& give_up) {
  return connection_->request(
      Ask::Get, deadline, give_up,
      [&](Writer& message) { message.texts(keys).number(deadline.remaining().count()); },
      [](Reader& answer) { return answer.texts(); });
}

int64_t Client::add(const std::string& key, int64_t amount, Deadline deadline) {
  return connection_->request(
      Ask::Add, deadline, {}, [&](Writer& message) { message.text(key).number(amount); },
      [](Reader& answer) { return answer.number(); });
}

bool Client::check(const Values& keys, Deadline deadline) {
  return connection_->request(
      Ask::Check, deadline, {}, [&](Writer& message) { message.texts(keys); },
      [](Reader& answer) { return answer.number() != 0; });
}

bool Client::erase(const std::string& key, Deadline deadline) {
  return connection_->request(
      Ask::Erase, deadline, {}, [&](Writer& message) { message.text(key); },
      [](Reader& answer) { return answer.number() != 0; });
}

int64_t Client::count(Deadline deadline) {
  return connection_->request(
      Ask::Count, deadline, {}, [](Writer&) {}, [](Reader& answer) { return answer.number(); });
}

void Client::forget(const std::string& prefix, int holders) noexcept {
  connection_->notify([&](Writer& message) {
    message.number(static_cast<int64_t>(Ask::Forget)).text(prefix).number(holders);
  });
  connection_->forget_failures(prefix);
}

void Client::fail(const std::string& topic, const std::string& text) noexcept {
  connection_->notify(
      [&](Writer& message) { message.number(static_cast<int64_t>(Ask::Fail)).text(topic).text(text); });
}

std::optional<Failure> Client::failure(const std::string& topic) const { return connection_->failure(topic); }
std::map<int, Ended> Client::ended() const { return connection_->ended(); }
uint64_t Client::subscribe(std::function<void()> on_news) {
  return connection_->subscribe(std::move(on_news));
}
void Client::unsubscribe(uint64_t subscription) { connection_->unsubscribe(subscription); }

void Client::say_goodbye() noexcept { Client::Connection::all().send_bye(); }

}  // namespace lockstep::store
