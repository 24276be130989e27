// The client side of the store. Every request has a deadline, and the server notifies the client at once when
// another rank ends or fails.
//
// Thread-safe. A background thread reads what the server sends. In a child made by fork() the client is
// closed and every call throws UsageError. A process that ends with exit(0), or returns 0 from main, sends
// Bye to the server and counts as left; a process that ends in any other way counts as lost.
#pragma once

#include <memory>

#include "base/fd.h"
#include "base/token.h"
#include "store/address.h"
#include "store/key_values.h"

namespace lockstep::store {

// The rank whose process runs the server.
inline constexpr int kHostRank = 0;

class Client final : public KeyValues {
 public:
  // Connects, and retries until the server is there. Throws TimeoutError; MismatchError if the server has
  // another token or is not a lockstep store.
  Client(const Address& address, const base::Token& token, int rank, base::Deadline deadline);
  ~Client() override;

  void set(const std::string& key, const std::string& value, base::Deadline deadline) override;
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& wanted,
                          base::Deadline deadline) override;
  Values get(const Values& keys, base::Deadline deadline, const GiveUp& give_up) override;
  int64_t add(const std::string& key, int64_t amount, base::Deadline deadline) override;
  bool check(const Values& keys, base::Deadline deadline) override;
  bool erase(const std::string& key, base::Deadline deadline) override;
  int64_t count(base::Deadline deadline) override;
  void forget(const std::string& prefix, int holders) noexcept override;
  void fail(const std::string& topic, const std::string& text) noexcept override;
  std::optional<Failure> failure(const std::string& topic) const override;
  std::map<int, Ended> ended() const override;
  uint64_t subscribe(std::function<void()> on_news) override;
  void unsubscribe(uint64_t subscription) override;

  // Sends Bye for all clients of this process, as exit(0) does. For processes that end with _exit().
  static void say_goodbye() noexcept;

 private:
  class Connection;
  std::unique_ptr<Connection> connection_;
};

}  // namespace lockstep::store
