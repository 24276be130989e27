// While it lives, a write of this thread to a connection whose other end is gone fails with EPIPE, and
// threads started meanwhile keep that for good. Without it the signal ends the process, without a word:
// Gloo's sockets ask for it, and only Python, which ignores SIGPIPE, never sees it. The rest of the process
// is left as the user wants it.
#pragma once

#include <csignal>
#include <ctime>

namespace lockstep::gloo {

class NoSigpipe {
 public:
  NoSigpipe() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGPIPE) == 1;
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    const timespec at_once{};
    if (!was_pending_) ::sigtimedwait(&pipe_, nullptr, &at_once);  // ours, if there is one
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_;
};

}  // namespace lockstep::gloo
