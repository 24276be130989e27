// Reads the file that `lockstep bench --json FILE` has written.
#pragma once

#include <string>

#include "plan/constants.h"

namespace lockstep::plan {

// `name` is the file's, for errors. Rows that are not needed are left out: other dtypes and operations,
// refused calls and wrong data. Throws UsageError if the text is not JSON or not of `lockstep bench`.
BenchRun parse_bench(const std::string& text, const std::string& name);

// Throws UsageError if the file cannot be read, or as parse_bench().
BenchRun read_bench(const std::string& path);

}  // namespace lockstep::plan
