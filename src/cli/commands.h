// The commands of the `lockstep` binary. Each takes the words after its name and returns the exit status.
#pragma once

#include <string>
#include <vector>

namespace lockstep::cli {

constexpr int kUsage = 2;  // exit status for a command line that makes no sense

int run(const std::vector<std::string>& arguments);

// Replaces this process by lockstep-torch, which has the commands that need LibTorch. Returns only on
// failure.
int forward_to_torch(const std::string& command, const std::vector<std::string>& arguments);

}  // namespace lockstep::cli
