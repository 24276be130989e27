// What lockstep asks of a store, each within a deadline. Its own (client.h) does all of it; LibTorch's can be
// made to do (comm/foreign_store.h).
//
// Thread-safe. Throws TimeoutError when the deadline passes, PeerLostError when the store is gone.
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
enum class Ending { Lost, Left };  // killed, crashed or unreachable; in good order

struct Ended {
  Ending how;
  base::Deadline::Clock::time_point since;
};

// Why a rank has declared a topic (a group of ranks) failed.
struct Failure {
  int rank = 0;
  std::string text;
  base::Deadline::Clock::time_point since;  // when this process learned of it
};

class KeyValues {
 public:
  using Values = std::vector<std::string>;
  // Called while a call waits, whenever something may have happened; throws to end the waiting.
  using GiveUp = std::function<void()>;

  virtual ~KeyValues() = default;

  virtual void set(const std::string& key, const std::string& value, base::Deadline deadline) = 0;
  // Sets it if it has the expected value (empty: also if it is not there); returns the value that is there
  // now.
  virtual std::string compare_set(const std::string& key, const std::string& expected,
                                  const std::string& wanted, base::Deadline deadline) = 0;
  // Waits until all are there.
  virtual Values get(const Values& keys, base::Deadline deadline, const GiveUp& give_up) = 0;
  virtual int64_t add(const std::string& key, int64_t amount, base::Deadline deadline) = 0;
  virtual bool check(const Values& keys, base::Deadline deadline) = 0;
  virtual bool erase(const std::string& key, base::Deadline deadline) = 0;
  virtual int64_t count(base::Deadline deadline) = 0;

  // One of `holders` has no more use for the keys with this prefix; the last one's word erases them. Does not
  // wait and does not throw.
  virtual void forget(const std::string& prefix, int holders) noexcept = 0;

  // Tells all ranks that this one has given up `topic`. Does not throw.
  virtual void fail(const std::string& topic, const std::string& text) noexcept = 0;
  virtual std::optional<Failure> failure(const std::string& topic) const = 0;
  // The ranks whose processes have ended, as far as is known.
  virtual std::map<int, Ended> ended() const = 0;

  // `heard` is called, on another thread, after each change of the two above, until it is taken back. When
  // unsubscribe() returns, it is not being called any more.
  virtual uint64_t subscribe(std::function<void()> heard) = 0;
  virtual void unsubscribe(uint64_t subscription) = 0;
};

}  // namespace lockstep::store
