// The interface of a store. lockstep's own (client.h) implements all of it; rendezvous/foreign_store.h adapts
// those of LibTorch.
//
// Thread-safe. Throws TimeoutError when a deadline passes, PeerLostError when the store cannot be reached any
// more.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"

namespace lockstep::store {

// How a rank's process ended.
enum class Ending { Lost, Left };  // Lost: killed, crashed or unreachable. Left: exited with status 0.

struct Ended {
  Ending how;
  base::Deadline::Clock::time_point since;
};

// Whether the topic belongs to the group whose keys have this prefix, and not to a group below it.
inline bool is_topic_of(const std::string& prefix, const std::string& topic) {
  return topic.starts_with(prefix) && topic.find('/', prefix.size()) == std::string::npos;
}

// A rank's declaration that a topic (a group of ranks) has failed.
struct Failure {
  int rank = 0;
  std::string text;
  base::Deadline::Clock::time_point since;  // when this process learned of it
};

class KeyValues {
 public:
  using Values = std::vector<std::string>;
  // Called during a wait whenever a rank's state may have changed. Throws to end the wait.
  using GiveUp = std::function<void()>;

  virtual ~KeyValues() = default;

  virtual void set(const std::string& key, const std::string& value, base::Deadline deadline) = 0;
  // Sets the key if it has the expected value (empty: also if the key does not exist). Returns its value
  // afterwards.
  virtual std::string compare_set(const std::string& key, const std::string& expected,
                                  const std::string& wanted, base::Deadline deadline) = 0;
  // Blocks until all keys exist.
  virtual Values get(const Values& keys, base::Deadline deadline, const GiveUp& give_up) = 0;
  virtual int64_t add(const std::string& key, int64_t amount, base::Deadline deadline) = 0;
  virtual bool check(const Values& keys, base::Deadline deadline) = 0;
  virtual bool erase(const std::string& key, base::Deadline deadline) = 0;
  virtual int64_t count(base::Deadline deadline) = 0;

  // Declares that one of `holders` no longer needs the keys with this prefix; the last of these calls erases
  // them. Does not block.
  virtual void forget(const std::string& prefix, int holders) noexcept = 0;

  // Announces to all ranks that this rank has given up `topic`.
  virtual void fail(const std::string& topic, const std::string& text) noexcept = 0;
  virtual std::optional<Failure> failure(const std::string& topic) const = 0;
  // The ranks whose processes are known to have ended.
  virtual std::map<int, Ended> ended() const = 0;

  // Calls `on_news` on another thread after each change of failure() or ended(), until it is unsubscribed.
  // Once unsubscribe() has returned, no call of it is running.
  virtual uint64_t subscribe(std::function<void()> on_news) = 0;
  virtual void unsubscribe(uint64_t subscription) = 0;
};

}  // namespace lockstep::store
