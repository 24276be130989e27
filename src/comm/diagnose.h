// Finds the cause of an error among the ranks of a group, where the error itself does not contain it: errors
// of a c10d backend, which are a line of text, and waits for a key of the store.
#pragma once

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <lockstep/error.h>

#include "comm/group.h"

namespace lockstep::comm {

// Whether a call in progress can no longer complete: a rank of the group has failed, or has ended long enough
// ago that everything it had sent would have arrived.
bool is_hopeless(const ProcessGroup::Impl& group);

// The ranks of the group that have ended, those that were lost first. If there are none yet, waits up to
// `moment`: a closed connection may be noticed before the end of its process.
std::vector<int> ended_ranks(const ProcessGroup::Impl& group, std::chrono::milliseconds moment = {});

// Publishes in the store that this rank has been waiting in `call` for a while, so that the other ranks can
// report it if they time out. Returns within half a second; does not throw.
void report_waiting(ProcessGroup::Impl& group, const std::string& call);

// Whether all these ranks have published that. False if there are none, or if the store does not answer.
bool are_waiting(const ProcessGroup::Impl& group, const std::vector<int>& ranks);

// Two ranks make different calls at the same point. Thrown by the transports.
struct Disagreement {
  int rank;                 // the other rank
  uint64_t number;          // of the collective; 0 for a message
  std::string here, there;  // the call of this rank, the call of the other
};
MismatchError mismatch_error(const ProcessGroup::Impl& group, const Disagreement& disagreement);
// Ends the group with this error, and throws it.
[[noreturn]] void throw_mismatch(ProcessGroup::Impl& group, const Disagreement& disagreement);

// "#3 all_reduce of 1000 Float, Sum"; a number of 0 is left out.
std::string numbered(uint64_t number, const std::string& call);

// A call has exceeded its own timeout, which is shorter than the group's.
struct CallTimeout : std::runtime_error {
  explicit CallTimeout(std::chrono::milliseconds limit) : std::runtime_error("timed out"), timeout(limit) {}
  std::chrono::milliseconds timeout;
};

// Must be called while handling the exception that ended `call`. Collects the evidence and throws one of
// lockstep's errors, which names the ranks that caused it. lockstep's own errors are rethrown unchanged.
[[noreturn]] void throw_diagnosis(ProcessGroup::Impl& group, const std::string& call, uint64_t number);

}  // namespace lockstep::comm
