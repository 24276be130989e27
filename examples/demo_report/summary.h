// The end of `make demo` on the terminal: the runs beside each other.
#pragma once

#include <string>
#include <vector>

#include "run.h"

namespace demo {

// The first run is what the others are compared with.
std::string summary_of(const std::vector<Run>& runs);

}  // namespace demo
