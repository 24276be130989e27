// Turns what a c10d backend throws into lockstep's errors, with evidence of who is to blame.
#pragma once

#include <memory>
#include <string>

#include <lockstep/error.h>

#include "comm/group.h"

namespace lockstep::comm {

// One collective, for messages.
struct Call {
  uint64_t number = 0;  // the group's count; 0 for what is no collective
  std::string what;     // "all_reduce of 1000 Float, Sum"
};

// Throws the group's first error again, if it had one.
void refuse_if_poisoned(ProcessGroup::Impl& group);

// Whether a call under way on a foreign backend has no chance any more: a rank of the group has been gone for
// a moment, in which what it had sent could have arrived, or one has failed.
bool is_hopeless(const ProcessGroup::Impl& group);

// Leaves a word in the store that this rank has been waiting in `call` for a while, so that the others can
// tell who is where if it ends in a timeout. Does not block.
void report_waiting(ProcessGroup::Impl& group, const Call& call);

// Ends the group with this error: here, and on the other ranks as soon as they can know.
void poison(ProcessGroup::Impl& group, const Error& why);

// Must be called while an exception of the backend is being handled. Finds out what can be known, poisons the
// group, tells the agent, and throws one of lockstep's errors.
[[noreturn]] void throw_failure(ProcessGroup::Impl& group, const Call& call);

}  // namespace lockstep::comm
