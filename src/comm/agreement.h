// Checks that ranks make the same collectives, for an engine that does not: Gloo accepts any data that
// arrives, or throws in its event thread, where the exception cannot be caught.
//
// With each collective, a rank sends its fingerprint to the next rank and receives that of the previous one.
// If every two neighbours agree, all ranks do. The data of different calls must never be combined, so its
// tags also depend on the fingerprint. Then the comparison takes place during the call instead of before it,
// and asynchronous calls start immediately. A call is complete when the engine has done its part and the
// fingerprints were equal.
//
// Fingerprints arrive in the order of the calls, and are compared in this order, whichever call is waited for
// first. Thread-safe except for tell(), which must be called in the order of the calls.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/fingerprint.h"
#include "comm/link.h"

namespace lockstep::comm {

class Agreement {
 public:
  // Of this rank, which is one of `ranks`: all of them must have one, in the same order. Null if there is no
  // other rank, or if LOCKSTEP_CHECK_CALLS is off.
  static std::unique_ptr<Agreement> among(const std::vector<int>& ranks, int rank);

  // Must be called before the data of each collective is sent. Does not block.
  void tell(Link& link, const Fingerprint& mine);
  // Blocks until the calls up to this number have been compared. Throws Disagreement, the link's exception,
  // or std::runtime_error if `hopeless` has ended the wait (Transfer::wait).
  void verify(uint64_t number, const std::function<bool()>& hopeless);

 private:
  struct Exchange {
    std::mutex settling;
    std::atomic<bool> settled{false};
    Fingerprint mine, heard;
    TransferPtr hearing, telling;
  };
  using ExchangePtr = std::shared_ptr<Exchange>;

  Agreement(int next, int previous) : next_(next), previous_(previous) {}
  void settle(Exchange& exchange, const std::function<bool()>& hopeless) const;

  const int next_;
  const int previous_;
  std::mutex mutex_;
  std::deque<ExchangePtr> under_way_;  // in the order of the calls
};

}  // namespace lockstep::comm
