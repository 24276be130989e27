// The failure of a group: its first error, which every later call throws again.
#pragma once

#include <lockstep/error.h>

#include "comm/group.h"

namespace lockstep::comm {

// Throws the group's first error if the group has failed.
[[noreturn]] void throw_first_error(const ProcessGroup::Impl& group);
inline void refuse_if_failed(const ProcessGroup::Impl& group) {
  if (group.failed.load(std::memory_order_acquire)) [[unlikely]]
    throw_first_error(group);
}

// Throws UsageError in a forked child of the process that made the group.
void refuse_if_forked(const ProcessGroup::Impl& group);

// Ends the group with this error: here, and on the other ranks as soon as they can be notified.
void end_group(ProcessGroup::Impl& group, const Error& why);

// Publishes the error in the group's store, for ranks that share no memory with this one. The ranks that read
// it get the error with which another rank ended the group.
void publish_failure(ProcessGroup::Impl& group, const Error& why) noexcept;
ProcessGroup::Impl::Failure read_failure(const store::Failure& published);

// Must be called while handling an exception of the transport. Adds the purpose of the call (purpose.h),
// records the error as the group's, reports it to the launcher, and throws it. A UsageError is rethrown and
// the group stays usable, because nothing has been started.
[[noreturn]] void throw_failure(ProcessGroup::Impl& group);
// The same for an exception of the control channel, which the data transport does not know yet: publishes it.
[[noreturn]] void throw_control_failure(ProcessGroup::Impl& group);

}  // namespace lockstep::comm
