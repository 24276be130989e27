// `lockstep info`: describes this machine and this build, and reports problems with the setup.
#pragma once

#include <string>

namespace lockstep::cli {

// Prints to stdout. `master`: the host to which the ranks would find their way; empty: MASTER_ADDR. Returns
// the exit status, which is 0 even if there are problems.
int info(bool json, const std::string& master);

}  // namespace lockstep::cli
