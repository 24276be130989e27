// `lockstep`: selects the command and runs it.
#include <algorithm>
#include <fmt/format.h>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "launch/nearest.h"

namespace {

constexpr const char* kHelp = R"(lockstep: Distributed Data Parallel training for C++ programs on LibTorch

Usage: lockstep COMMAND …

Commands:
  run       start a program as the ranks of one job, on this machine or on several
  info      show versions, backends, cores and limits, and problems with the setup of this machine
  plan      predict the speed and memory of a job on machines that you describe
  bench     measure every collective on every backend of this machine, and check the data
  snapshot  list, show, verify, export and import snapshots

lockstep COMMAND --help describes a command. lockstep --version shows the version.

Example:
  lockstep run --nproc-per-node 4 ./train --epochs 10
)";

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty()) {
    fmt::print(stderr, "{}", kHelp);
    return lockstep::cli::kUsage;
  }
  const std::string& command = words.front();
  const std::vector<std::string> rest(words.begin() + 1, words.end());
  if (command == "--help" || command == "-h" || command == "help") {
    fmt::print("{}", kHelp);
    return 0;
  }
  if (command == "--version" || command == "version") {
    fmt::print("lockstep {}\n", LOCKSTEP_VERSION);
    return 0;
  }
  if (command == "run") return lockstep::cli::run(rest);
  if (command == "plan") return lockstep::cli::plan(rest);
  const std::vector<std::string> with_torch{"info", "bench", "snapshot"};
  if (std::find(with_torch.begin(), with_torch.end(), command) != with_torch.end()) {
    return lockstep::cli::forward_to_torch(command, rest);
  }
  const auto near = lockstep::launch::nearest(command, {"run", "plan", "info", "bench", "snapshot"});
  fmt::print(
      stderr, "lockstep: unknown command \"{}\"\nhint: {}\n", command,
      near.empty() ? "lockstep --help shows the commands" : fmt::format("did you mean lockstep {}?", near));
  return lockstep::cli::kUsage;
}
