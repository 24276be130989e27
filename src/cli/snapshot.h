// `lockstep snapshot`: lists, shows, checks and converts snapshots.
#pragma once

#include <string>
#include <vector>

namespace lockstep::cli {

// Takes the words after `snapshot`; returns the exit status.
int snapshot(const std::vector<std::string>& arguments);

}  // namespace lockstep::cli
