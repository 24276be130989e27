// The settings of the C library's heap, in the two forms they are given in.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lockstep::tuning {

// For a process about to be started: MALLOC_* variables, and GLIBC_TUNABLES with the user's own in front.
// What the user has set, in either of glibc's spellings, stays. (keep_heap() in tuning/plan.h is for a
// process that runs already.)
std::vector<std::pair<std::string, std::string>> heap_environment();

}  // namespace lockstep::tuning
