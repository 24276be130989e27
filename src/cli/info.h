// `lockstep info`: what this machine and this build are, and what is wrong with the set-up.
#pragma once

namespace lockstep::cli {

// Prints to stdout. Returns the exit status, which is 0 also when problems were found.
int info(bool json);

}  // namespace lockstep::cli
