// Describes how another process ended, of which this process is not the parent.
//
// Thread-safe.
#pragma once

#include <chrono>
#include <string>

#include "base/deadline.h"
#include "base/fd.h"

namespace lockstep::shm {

inline constexpr const char* kExitedNormally = "exited with status 0";

// A process that ends closes its connections first. On a busy machine, a while passes until others can see
// that it has ended.
inline constexpr std::chrono::milliseconds kBetweenCloseAndEnd{500};

// "killed by signal 9 (Killed)", "exited with status 3"; empty if the process is running at the deadline, or
// if its end is unknown. `process` is its pidfd, which may be empty; `pid` is its pid in this pid namespace.
std::string describe_peer_end(const base::Fd& process, int pid, base::Deadline until);

}  // namespace lockstep::shm
