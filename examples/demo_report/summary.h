// The summary that `make demo` prints: a table of the runs.
#pragma once

#include <string>
#include <vector>

#include "run.h"

namespace demo {

// The other runs are compared with the first one.
std::string summary_of(const std::vector<Run>& runs);

}  // namespace demo
