#include "launch/verdict.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fmt/format.h>
#include <set>
#include <sys/wait.h>

#include "base/process_end.h"

namespace lockstep::launch {

bool is_consequence(const RankEnd& failure) {
  return failure.note && (failure.note->kind == "PeerLostError" || failure.note->kind == "TimeoutError");
}

const RankEnd& choose_cause(const std::vector<RankEnd>& failures) {
  const auto cause = std::find_if_not(failures.begin(), failures.end(), is_consequence);
  return cause != failures.end() ? *cause : failures.front();
}

std::vector<int> blamed_ranks(const std::vector<RankEnd>& failures) {
  std::set<int> failed;
  for (const auto& failure : failures) failed.insert(failure.rank);
  std::optional<std::set<int>> agreed;
  for (const auto& failure : failures) {
    if (!is_consequence(failure)) return {};
    std::set<int> named;
    for (const int rank : failure.note->culprits) {
      if (!failed.contains(rank)) named.insert(rank);
    }
    if (named.empty()) continue;  // it names no rank, or only ranks that have failed themselves
    if (agreed) std::erase_if(*agreed, [&](int rank) { return !named.contains(rank); });
    if (!agreed) agreed = std::move(named);
  }
  if (!agreed) return {};
  return {agreed->begin(), agreed->end()};
}

bool succeeded(int wait_status) { return WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0; }

int exit_status(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

int as_wait_status(int status) { return (status & 0xff) << 8; }

std::string end_clause(int wait_status) {
  return (WIFSIGNALED(wait_status) ? "was " : "") + base::describe_end(wait_status);
}

std::string describe_culprits(const std::vector<Culprit>& culprits) {
  return culprits.front().ended
             ? "ended with status 0 while the others were still working: it made fewer steps"
             : "did not answer";
}

std::string hint_for_end(int wait_status) {
  if (!WIFSIGNALED(wait_status)) return {};
  switch (WTERMSIG(wait_status)) {
    case SIGKILL:
      return "SIGKILL comes from another process or from the kernel: look for the out-of-memory killer with "
             "dmesg, and check the limits of the batch system or container";
    case SIGSEGV:
    case SIGILL:
    case SIGFPE:
    case SIGABRT:
      return "a core dump (ulimit -c unlimited) or gdb shows where it crashed";
    case SIGBUS:
      return "a memory-mapped file was truncated or its file system is full; otherwise a core dump (ulimit "
             "-c unlimited) shows where it crashed";
    case SIGXCPU:
    case SIGXFSZ:
      return "a resource limit was exceeded: compare with ulimit -a";
    default:
      return "a process outside of this job sent the signal";
  }
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

}  // namespace lockstep::launch
