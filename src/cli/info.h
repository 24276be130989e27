// `lockstep info`: describes this machine and this build, and reports problems with the setup.
#pragma once

namespace lockstep::cli {

// Prints to stdout. Returns the exit status, which is 0 even if there are problems.
int info(bool json);

}  // namespace lockstep::cli
