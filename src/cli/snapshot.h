// `lockstep snapshot`: lists, shows, verifies and converts snapshots.
#pragma once

#include <string>
#include <vector>

namespace lockstep::cli {

// Takes the arguments after `snapshot` and returns the exit status.
int snapshot(const std::vector<std::string>& arguments);

}  // namespace lockstep::cli
