// The part of the job's store that belongs to one group of ranks. It is a c10d::Store, because LibTorch's
// backends and shared memory also connect through it.
//
// Ranks are numbered as in the group. A call throws TimeoutError at its deadline, and PeerLostError if the
// store is gone, or if it waits for a key and a rank of the group is lost.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "base/deadline.h"
#include "compat/store.h"
#include "store/key_values.h"

namespace lockstep::rendezvous {

class KeyStore;
using KeyStorePtr = c10::intrusive_ptr<KeyStore>;

class KeyStore final : public compat::Store {
 public:
  // `timeout`: of each call. The group consists of all ranks of the job.
  KeyStore(std::shared_ptr<store::KeyValues> values, std::string prefix, std::chrono::milliseconds timeout);

  // The keys below `name`, for the same ranks or for some of them.
  KeyStorePtr under(const std::string& name) const;
  KeyStorePtr under(const std::string& name, const std::vector<int>& ranks) const;
  // The same keys, with one deadline for all calls together.
  KeyStorePtr until(base::Deadline deadline) const;
  // Separate keys, through which the ranks of a backend connect. Because backends poll, check() for a missing
  // key also throws if a rank of the group is lost.
  KeyStorePtr for_backend(base::Deadline deadline) const;

  // c10d's interface.
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& wanted) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t amount) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

  // The same for text.
  void write(const std::string& key, const std::string& value);
  // nullopt while the key does not exist.
  std::optional<std::string> look(const std::string& key);
  // Blocks until all keys exist. Meanwhile, `give_up` is called from time to time, and throws to end the
  // wait.
  std::vector<std::string> read(const std::vector<std::string>& keys, const std::function<void()>& give_up);

  // Releases the keys; they are erased when `holders` ranks have released them. Does not block.
  void forget(int holders) noexcept { values_->forget(prefix_, holders); }

  // Ends the group's work: notifies every rank of the group with this text. Does not block.
  void fail(const std::string& text) noexcept { values_->fail(prefix_, text); }
  std::optional<store::Failure> failure() const;  // with the rank in the group
  // Ranks that end because another one did may be seen to end before it. So a rank reports which one it
  // blames before it ends itself; the first report counts. `rank` is the rank in the group.
  void blame(int rank) noexcept;
  std::optional<int> blamed() const;

  // The ranks of the group that have ended in this way, in the order in which this became known.
  struct EndedRank {
    int rank;
    base::Deadline::Clock::time_point since;
  };
  std::vector<EndedRank> ended(store::Ending how) const;

  uint64_t subscribe(std::function<void()> heard) { return values_->subscribe(std::move(heard)); }
  void unsubscribe(uint64_t subscription) { values_->unsubscribe(subscription); }

 private:
  c10::intrusive_ptr<c10d::Store> copy() const override;
  void refuse_if_lost(const std::string& key) const;
  template <class Call>
  auto asked(const std::string& key, Call&& call) const;
  base::Deadline deadline() const { return deadline_within(timeout_); }
  base::Deadline deadline_within(std::chrono::milliseconds timeout) const;
  std::vector<std::string> whole(const std::vector<std::string>& keys) const;
  std::vector<std::string> get_all(const std::vector<std::string>& keys, base::Deadline deadline);

  std::shared_ptr<store::KeyValues> values_;
  std::string prefix_;        // ends with a slash, so that no prefix is the beginning of another
  std::vector<int> members_;  // the ranks in the job of the group's ranks; empty: they are the same
  std::optional<base::Deadline> until_;
  bool watched_ = false;  // see for_backend()
};

}  // namespace lockstep::rendezvous
