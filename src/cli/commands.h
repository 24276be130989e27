// The commands of the `lockstep` binary. Each takes its arguments and returns the exit status.
#pragma once

#include <string>
#include <vector>

namespace lockstep::cli {

constexpr int kUsage = 2;  // exit status for an invalid command line

int run(const std::vector<std::string>& arguments);
int plan(const std::vector<std::string>& arguments);

// Executes lockstep-torch, which has the commands that need LibTorch, in place of this process. Returns only
// if that fails.
int forward_to_torch(const std::string& command, const std::vector<std::string>& arguments);

}  // namespace lockstep::cli
