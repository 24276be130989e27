// `lockstep bench`: what the collectives cost on this machine, on every backend.
#pragma once

#include <string>
#include <vector>

namespace lockstep::cli {

// Takes the words after the command's name; returns the exit status. Forks: call it before the process has
// threads of its own.
int bench(const std::vector<std::string>& words);

}  // namespace lockstep::cli
