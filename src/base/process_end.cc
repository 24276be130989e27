#include "base/process_end.h"

#include <cstring>
#include <fmt/format.h>
#include <sys/wait.h>

namespace lockstep::base {

std::string describe_end(int wait_status) {
  if (!WIFSIGNALED(wait_status)) return fmt::format("exited with status {}", WEXITSTATUS(wait_status));
  const int signal = WTERMSIG(wait_status);
  // strsignal(3) is not thread-safe, sigdescr_np(3) is.
  const char* words = ::sigdescr_np(signal);
  return fmt::format("killed by signal {} ({})", signal, words != nullptr ? words : "unknown");
}

}  // namespace lockstep::base
