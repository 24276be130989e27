// The signals that the launcher waits for instead of being interrupted by them, and how the workers get back
// what they would have had without a launcher.
#pragma once

#include <csignal>

namespace lockstep::launch {

class Signals {
 public:
  // Blocks the signals below in this thread and those it will start, to be read with sigwaitinfo(2) or a
  // signalfd(2): SIGCHLD; SIGINT, SIGTERM, SIGHUP, SIGQUIT; SIGUSR1, SIGUSR2; SIGTSTP, SIGCONT. One that the
  // parent process had set to be ignored (nohup, a shell's background job) is left ignored. Writing to a
  // closed pipe or, from the background, to a terminal gives an error or goes through; it never ends or stops
  // us.
  static Signals take_over();

  const sigset_t& waited_for() const { return waited_for_; }
  // For a child before exec; async-signal-safe.
  void give_back() const;

 private:
  sigset_t waited_for_;
  sigset_t mask_before_;
  struct sigaction pipe_before_ {};
  struct sigaction ttou_before_ {};
};

// Whether the signal asks the job to stop.
bool is_stop_signal(int signal);

}  // namespace lockstep::launch
