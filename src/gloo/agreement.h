// Checks that the ranks of a group make the same collectives, for a backend that does not: Gloo accepts any
// data that arrives, or throws in its event thread, where the exception cannot be caught.
//
// With each collective, a rank sends its fingerprint to the next rank and receives that of the previous one.
// If every two neighbours agree, all ranks do. The data of different calls is never combined, because Gloo's
// own tag of a call also depends on the fingerprint (mark_next_collective). So the comparison takes place
// during the call instead of before it, and asynchronous calls start immediately. A call is complete when the
// backend has done its part and the fingerprints were equal.
//
// Fingerprints arrive in the order of the calls, and are compared in this order, whichever call is waited for
// first. Thread-safe except for tell(), which must be called in the order of the calls.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <lockstep/c10d.h>

#include "comm/fingerprint.h"
#include "gloo/interrupter.h"

namespace lockstep::gloo {

class Agreement {
 public:
  // Null if there is no other rank, or if LOCKSTEP_CHECK_CALLS is off.
  static std::unique_ptr<Agreement> among(int rank, int world_size);

  // Must be called before each collective is passed to the backend. Does not block.
  void tell(c10d_backend& backend, const comm::Fingerprint& mine);
  // Blocks until the calls up to this number have been compared. Throws comm::Disagreement, the backend's
  // exception, or std::runtime_error if `hopeless` has ended the wait (Interrupter::wait).
  void verify(uint64_t number, Interrupter& waits, const std::function<bool()>& hopeless);

  // Closes all connections of the backend: ranks that wait for this one, and calls that wait here, stop
  // waiting. For a group that has failed.
  void hang_up(c10d_backend& backend) const noexcept;

 private:
  struct Exchange {
    std::mutex settling;
    std::atomic<bool> settled{false};
    comm::Fingerprint mine;
    at::Tensor heard;
    c10::intrusive_ptr<c10d::Work> hearing, telling;
  };
  using ExchangePtr = std::shared_ptr<Exchange>;

  Agreement(int next, int previous) : next_(next), previous_(previous) {}
  void settle(Exchange& exchange, Interrupter& waits, const std::function<bool()>& hopeless) const;

  const int next_;
  const int previous_;
  std::mutex mutex_;
  std::deque<ExchangePtr> under_way_;  // in the order of the calls
};

}  // namespace lockstep::gloo
