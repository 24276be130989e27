// demo.html: what the runs did, as one page that needs nothing else.
#pragma once

#include <string>
#include <vector>

#include "machine.h"
#include "run.h"

namespace demo {

// The first run is what the others are compared with.
std::string page_of(const std::vector<Run>& runs, const Machine& machine);

}  // namespace demo
