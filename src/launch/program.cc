#include "launch/program.h"

#include <cerrno>
#include <cstdlib>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error_text.h"

namespace lockstep::launch {

namespace {

using base::compose;
using base::errno_text;

// 0 if `path` can be executed, otherwise the errno of the reason.
int obstacle(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return errno;
  if (S_ISDIR(status.st_mode)) return EISDIR;
  if (!S_ISREG(status.st_mode)) return EACCES;
  return ::access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

std::string hint_for(const std::string& name, int error_number) {
  const bool python = name.ends_with(".py");
  if (error_number == ENOENT || error_number == ENOTDIR) {
    if (name.find('/') == std::string::npos && ::access(name.c_str(), F_OK) == 0) {
      return fmt::format("there is a file {0} in this directory: use {1}", name,
                         python ? "python3 " + name : "./" + name);
    }
    return "check the path and that the program has been built";
  }
  if (error_number == EISDIR) return "give the path of the program in it";
  if (error_number == ENOEXEC) return "it is not a program for this machine";
  return python ? fmt::format("use python3 {}", name) : fmt::format("chmod +x {} makes it executable", name);
}

}  // namespace

CannotStart cannot_execute(const std::string& path, int error_number) {
  if (error_number == ENOENT && ::access(path.c_str(), F_OK) == 0) {
    return CannotStart(
        kNotExecutable,
        compose({.what = fmt::format("cannot start \"{}\"", path),
                 .evidence = "the file exists, but the interpreter that it names does not",
                 .hint = "check its first line (#!), or for a binary its loader, which file(1) shows"}));
  }
  const bool missing = error_number == ENOENT || error_number == ENOTDIR;
  return CannotStart(missing ? kNotFound : kNotExecutable,
                     compose({.what = fmt::format("cannot start \"{}\"", path),
                              .evidence = errno_text(error_number),
                              .hint = hint_for(path, error_number)}));
}

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (const int why = obstacle(name)) throw cannot_execute(name, why);
    return name;
  }
  const char* variable = std::getenv("PATH");
  std::string path = variable != nullptr ? variable : "/bin:/usr/bin";
  int why = ENOENT;
  for (size_t begin = 0; !name.empty() && begin <= path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const std::string folder = path.substr(begin, end - begin);
    // An empty entry means the current directory.
    std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    const int here = obstacle(candidate);
    if (here == 0) return candidate;
    // Like a shell: continue the search, but remember that a file could not be executed.
    if (here == EACCES) why = here;
    begin = end + 1;
  }
  throw CannotStart(why == ENOENT ? kNotFound : kNotExecutable,
                    compose({.what = fmt::format("cannot start \"{}\"", name),
                             .evidence = why == ENOENT ? "no program of this name in PATH"
                                                       : "the one in PATH is not executable",
                             .hint = hint_for(name, why)}));
}

}  // namespace lockstep::launch
