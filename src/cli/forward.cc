#include <cerrno>
#include <filesystem>
#include <fmt/format.h>
#include <unistd.h>

#include "base/error_text.h"
#include "cli/commands.h"

namespace lockstep::cli {

namespace {

constexpr const char* kName = "lockstep-torch";

// In a build tree it is next to this binary, after installation in the libexec folder of the same prefix.
std::string find_torch_binary() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto folder = self.parent_path();
  auto prefix = folder;
  for (const auto& part : std::filesystem::path(LOCKSTEP_BINDIR)) {
    if (!part.empty()) prefix = prefix.parent_path();
  }
  for (const auto& candidate : {folder / kName, prefix / LOCKSTEP_LIBEXECDIR / kName}) {
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return {};
}

}  // namespace

int forward_to_torch(const std::string& command, const std::vector<std::string>& arguments) {
  const auto binary = find_torch_binary();
  if (binary.empty()) {
    fmt::print(stderr,
               "lockstep {}: {} is neither next to this program nor in {} of its prefix\n"
               "hint: build or install all of lockstep\n",
               command, kName, LOCKSTEP_LIBEXECDIR);
    return 1;
  }
  std::vector<std::string> words{binary, command};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execv(binary.c_str(), pointers.data());
  fmt::print(stderr, "lockstep {}: cannot execute {}: {}\n", command, binary, base::errno_text(errno));
  return 1;
}

}  // namespace lockstep::cli
