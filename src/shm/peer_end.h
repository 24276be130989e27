// Describes how another process ended, of which this process is not the parent.
//
// Thread-safe.
#pragma once

#include <string>

#include "base/fd.h"

namespace lockstep::shm {

inline constexpr const char* kExitedNormally = "exited with status 0";

// "killed by signal 9 (Killed)", "exited with status 3"; empty if the process is running or if its end
// is unknown. `process` is its pidfd, which may be empty; `pid` is its pid in this pid namespace. Never
// blocks.
std::string describe_peer_end(const base::Fd& process, int pid);

}  // namespace lockstep::shm
