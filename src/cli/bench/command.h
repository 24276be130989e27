// `lockstep bench`: measures the collectives on this machine, on every backend.
#pragma once

#include <string>
#include <vector>

namespace lockstep::cli {

// Takes the arguments after the command's name and returns the exit status. Forks, so call it before the
// process has other threads.
int bench(const std::vector<std::string>& words);

}  // namespace lockstep::cli
