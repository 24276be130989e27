// How a process ended, in words.
#pragma once

#include <string>

namespace lockstep::base {

// "exited with status 3" or "killed by signal 9 (Killed)". `wait_status` is what waitpid(2) returns for a
// process that has ended. Thread-safe.
std::string describe_end(int wait_status);

}  // namespace lockstep::base
