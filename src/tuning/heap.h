// Settings of the C library's heap for a new process.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lockstep::tuning {

// Environment variables for a process that is about to be started: MALLOC_* and GLIBC_TUNABLES, the latter
// with the user's own tunables first. Whatever the user has set, in either of glibc's spellings, is kept. For
// a running process use keep_heap() (tuning/plan.h).
std::vector<std::pair<std::string, std::string>> heap_environment();

}  // namespace lockstep::tuning
