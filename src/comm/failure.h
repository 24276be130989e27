// The failure of a group: its first error, which every later call repeats.
#pragma once

#include <lockstep/error.h>

#include "comm/group.h"

namespace lockstep::comm {

// Throws the group's first error again, if it had one.
[[noreturn]] void throw_first_error(const ProcessGroup::Impl& group);
inline void refuse_if_failed(const ProcessGroup::Impl& group) {
  if (group.failed.load(std::memory_order_acquire)) [[unlikely]]
    throw_first_error(group);
}

// Ends the group with this error: here, and on the other ranks as soon as they can know.
void end_group(ProcessGroup::Impl& group, const Error& why);

// Must be called while an exception of the transport is handled. Adds what the call was for (purpose.h),
// keeps the error as the group's, reports it to the launcher, and throws it. A UsageError leaves the group
// alone: nothing has begun.
[[noreturn]] void throw_failure(ProcessGroup::Impl& group);
// The same for one of the control channel, of which the data transport knows nothing yet.
[[noreturn]] void throw_control_failure(ProcessGroup::Impl& group);

}  // namespace lockstep::comm
