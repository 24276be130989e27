#include "launch/guard.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "launch/descendants.h"
#include "launch/verdict.h"

namespace lockstep::launch {

namespace {

using base::compose;
using base::errno_text;
using base::Fd;

// Reaps the children that have ended. Returns true, and the status in `wait_status`, if `agent` is among
// them.
bool reap(pid_t agent, int& wait_status) {
  bool agent_ended = false;
  for (;;) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, WNOHANG);
    if (pid <= 0) return agent_ended;
    if (pid == agent) {
      agent_ended = true;
      wait_status = status;
    }
  }
}

int watch(pid_t agent, const Signals& signals) {
  int wait_status = 0;
  for (;;) {
    siginfo_t info{};
    const int signal = ::sigwaitinfo(&signals.waited_for(), &info);
    if (signal < 0) continue;  // interrupted
    if (signal == SIGCHLD) {
      if (reap(agent, wait_status)) break;
      continue;
    }
    ::kill(agent, signal);
    // A stopped agent (SIGSTOP) has to continue before it can end the job.
    if (is_stop_signal(signal)) ::kill(agent, SIGCONT);
    // The agent stops the workers and keeps running; this process stops, so that the shell shows its prompt.
    if (signal == SIGTSTP) ::raise(SIGSTOP);
  }
  const size_t ended = end_descendants(std::chrono::milliseconds(0));
  if (WIFSIGNALED(wait_status)) {
    fmt::print(stderr,
               "lockstep run: the agent of this job (pid {}) {}: {} process(es) that it left were ended\n",
               agent, end_clause(wait_status), ended);
    const auto hint = hint_for_end(wait_status);
    if (!hint.empty()) fmt::print(stderr, "hint: {}\n", hint);
  }
  return exit_status(wait_status);
}

}  // namespace

int run_guarded(const std::function<int(GuardedContext)>& agent) {
  become_subreaper();
  Signals signals = Signals::take_over();
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw SystemError(compose({.what = "cannot create a pipe", .evidence = errno_text(errno)}));
  }
  Fd read_end(ends[0]);
  Fd write_end(ends[1]);

  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) {
    throw SystemError(compose({.what = "cannot start the agent of this job",
                               .evidence = errno_text(errno),
                               .hint = "compare ulimit -u with the number of running processes"}));
  }
  if (pid == 0) {
    write_end.reset();
    ::setpgid(0, 0);
    become_subreaper();  // not inherited across fork
    ::_exit(agent(GuardedContext{signals, std::move(read_end)}));
  }
  ::setpgid(pid, pid);
  read_end.reset();
  // `write_end` stays open until this process ends: the agent reads end of file when the guard has ended.
  return watch(pid, signals);
}

}  // namespace lockstep::launch
