// Whether the ranks of a group make the same collectives, for a backend that does not look: Gloo takes what
// arrives for what was meant, or throws in its event thread, where nobody can catch it.
//
// With each collective a rank sends its fingerprint to the next rank and receives that of the previous one.
// When every two neighbours agree, all ranks do. The data of calls that differ never meets, since Gloo's own
// tag of a call is made from the fingerprint, too (mark_next_collective); so the comparison takes
// place beside the call instead of before it, and asynchronous calls start at once. A call is complete when
// the backend has done its part and the fingerprints have been found equal.
//
// Fingerprints arrive in the order of the calls, and are compared in this order, whichever call is waited for
// first. Thread-safe but for tell(), whose order is the order of the calls.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <lockstep/c10d.h>

#include "gloo/fingerprint.h"
#include "gloo/interrupter.h"

namespace lockstep::gloo {

class Agreement {
 public:
  // Null when there is nobody to agree with, or when LOCKSTEP_CHECK_CALLS is off.
  static std::unique_ptr<Agreement> among(int rank, int world_size);

  // To be called before each collective is handed to the backend. Does not wait.
  void tell(c10d_backend& backend, const Fingerprint& mine);
  // Waits until the calls up to this number have been compared. Throws comm::Disagreement, or what the
  // backend throws, or std::runtime_error when `hopeless` has ended the wait (Interrupter::wait).
  void verify(uint64_t number, Interrupter& waits, const std::function<bool()>& hopeless);

  // Closes all connections of the backend: whoever waits for this rank, or here for another one, stops
  // waiting. For a group that has failed.
  void hang_up(c10d_backend& backend) const noexcept;

 private:
  struct Exchange {
    std::mutex settling;
    std::atomic<bool> settled{false};
    Fingerprint mine;
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
