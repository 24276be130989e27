// One of LibTorch's stores, passed by the caller or hosted by torchrun, with deadlines.
//
// Some calls of LibTorch's stores wait for the host forever. So each call runs on its own thread; if it takes
// too long, the thread is abandoned and the store is not used again. Such a store does not report ranks that
// end.
#pragma once

#include <atomic>
#include <mutex>
#include <set>
#include <unistd.h>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "store/key_values.h"

namespace lockstep::rendezvous {

class ForeignStore final : public store::KeyValues {
 public:
  ForeignStore(c10::intrusive_ptr<c10d::Store> store, int rank);
  // In a forked child, LibTorch's store is not destroyed: the destructor of a TCPStore would stop the server
  // of the parent, through a pipe that both have; that of a FileStore would count as a rank that has
  // finished.
  ~ForeignStore() override;

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
  std::optional<store::Failure> failure(const std::string& topic) const override;
  std::map<int, store::Ended> ended() const override { return {}; }
  uint64_t subscribe(std::function<void()>) override { return 0; }
  void unsubscribe(uint64_t) override {}

 private:
  template <class Call>
  auto within(base::Deadline deadline, Call call) const;

  const pid_t made_by_ = ::getpid();
  c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  mutable std::atomic<bool> stuck_{false};
  std::mutex mutex_;
  std::set<std::string> written_;  // by this rank
};

}  // namespace lockstep::rendezvous
