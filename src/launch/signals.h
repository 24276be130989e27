// Blocks the signals that the launcher handles synchronously, and restores the original settings for the
// workers.
#pragma once

#include <csignal>

namespace lockstep::launch {

class Signals {
 public:
  // Blocks these signals in this thread and the threads that it starts, to be read with sigwaitinfo(2) or
  // signalfd(2): SIGCHLD; SIGINT, SIGTERM, SIGHUP, SIGQUIT; SIGUSR1, SIGUSR2; SIGTSTP, SIGCONT. A signal that
  // the parent process ignores (nohup, a shell's background job) stays ignored. Also ignores SIGPIPE and
  // SIGTTOU, so that writing to a closed pipe, or from the background to a terminal, neither ends nor stops
  // this process.
  static Signals take_over();

  const sigset_t& waited_for() const { return waited_for_; }
  // Restores the original settings, in a child before exec. Async-signal-safe.
  void give_back() const;

 private:
  sigset_t waited_for_;
  sigset_t mask_before_;
  struct sigaction pipe_before_ {};
  struct sigaction ttou_before_ {};
};

// Whether the signal asks a job to stop: SIGINT, SIGTERM, SIGHUP, SIGQUIT.
bool is_stop_signal(int signal);

}  // namespace lockstep::launch
