#include "launch/signals.h"

#include <initializer_list>

namespace lockstep::launch {

Signals Signals::take_over() {
  Signals signals;
  ::sigemptyset(&signals.waited_for_);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT}) {
    struct sigaction now {};
    ::sigaction(signal, nullptr, &now);
    if (signal == SIGCHLD) {
      // If SIGCHLD is ignored, the kernel discards the exit status of children.
      now = {};
      now.sa_handler = SIG_DFL;
      ::sigaction(SIGCHLD, &now, nullptr);
    } else if (now.sa_handler == SIG_IGN) {
      continue;
    }
    ::sigaddset(&signals.waited_for_, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &signals.waited_for_, &signals.mask_before_);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &signals.pipe_before_);
  ::sigaction(SIGTTOU, &ignore, &signals.ttou_before_);
  return signals;
}

void Signals::give_back() const {
  ::sigaction(SIGPIPE, &pipe_before_, nullptr);
  ::sigaction(SIGTTOU, &ttou_before_, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

bool is_stop_signal(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

}  // namespace lockstep::launch
