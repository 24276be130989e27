// Finds out what is wrong with the ranks of a group, for whatever does not report that by itself: a c10d
// backend that throws a line of text, or a wait for a key of the store.
#pragma once

#include <cstdint>
#include <string>

#include "comm/group.h"

namespace lockstep::comm {

// Whether a call under way has no chance any more: a rank of the group has been gone for a moment, in which
// what it had sent could have arrived, or one has failed.
bool is_hopeless(const ProcessGroup::Impl& group);

// Leaves a word in the store that this rank has been waiting in `call` for a while, so that the others can
// tell who is where if it ends in a timeout. Returns within half a second.
void report_waiting(ProcessGroup::Impl& group, const std::string& call);

// What two ranks were found to do at the same point.
struct Disagreement {
  int rank;                 // the other one
  uint64_t number;          // of the collective; 0 for a message
  std::string here, there;  // what each does
};
// Ends the group with a MismatchError, and throws it.
[[noreturn]] void throw_mismatch(ProcessGroup::Impl& group, const Disagreement& disagreement);

// "#3 all_reduce of 1000 Float, Sum"; a number of 0 is left out.
std::string numbered(uint64_t number, const std::string& call);

// Must be called while an exception is handled that ended `call`. Collects the evidence and throws one of
// lockstep's errors, which names who is to blame. lockstep's own errors pass as they are.
[[noreturn]] void throw_diagnosis(ProcessGroup::Impl& group, const std::string& call, uint64_t number);

}  // namespace lockstep::comm
