// How another process ended, told by the kernel although this process is not its parent.
//
// Thread-safety: a function without state; from any thread.
#pragma once

#include <string>

#include "base/fd.h"

namespace lockstep::shm {

inline constexpr const char* kEndedWell = "exited with status 0";

// "killed by signal 9 (Killed)", "exited with status 3"; empty while the process lives and when nobody can
// tell. `process` is its pidfd, which may be empty; `pid` is its number in this pid namespace. Never blocks.
std::string how_it_ended(const base::Fd& process, int pid);

}  // namespace lockstep::shm
