// Blocks SIGPIPE in this thread for as long as the object lives: a write to a connection that the peer has
// closed then fails with EPIPE. Threads started meanwhile inherit the mask and keep it. Without this,
// the signal, which Gloo's writes to its sockets raise, ends the process silently; only Python, which ignores
// SIGPIPE, is not affected. The signal's disposition and the other threads are left unchanged.
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
