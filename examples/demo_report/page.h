// demo.html: the results of the runs, as one self-contained page.
#pragma once

#include <string>
#include <vector>

#include "machine.h"
#include "run.h"

namespace demo {

// The other runs are compared with the first one.
std::string page_of(const std::vector<Run>& runs, const Machine& machine);

}  // namespace demo
