// The endpoint's background thread: advances calls that nobody waits for.
#include <pthread.h>
#include <system_error>
#include <thread>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/log.h"
#include "shm/endpoint.h"

namespace lockstep::shm {

namespace {

using namespace std::chrono_literals;

// How often the thread looks whether anybody advances what is under way. A call that is waited for at
// once must not wake it, so it wakes by itself; after a while without any calls it rests until it is called.
constexpr auto kShortPause = 200us;
constexpr auto kLongPause = 800us;
constexpr int kPausesBeforeRest = 64;
// How long it leaves calls to threads that come by. Then it naps as long, too: every time that it wakes it
// takes the CPU from a thread that computes, its own rank's or another job's, and keeps the kernel from
// giving that time to the rank that is waited for.
constexpr auto kInlinePause = 5ms;

}  // namespace

void Endpoint::need_background() {
  if (has_background_) {
    if (background_rests_) background_.notify_all();
    return;
  }
  const auto run = [self = shared_from_this()] {
    Lock lock(self->mutex_);
    if (!self->board_ && !self->failure_) {
      lock.unlock();
      try {
        self->connect();
      } catch (const std::exception& error) {
        base::log_debug("{}", error.what());  // kept: every call will throw it
      }
      lock.lock();
    }
    self->run_background(lock);
  };
  try {
    std::thread thread(run);
    ::pthread_setname_np(thread.native_handle(), "lockstep-shm");
    thread.detach();
    has_background_ = true;
  } catch (const std::system_error& error) {
    set_failure("SystemError",
                base::compose({.what = "a thread for the calls that nobody waits for cannot be started",
                               .where = where(nullptr),
                               .evidence = error.what(),
                               .hint = "raise the limit of processes and threads (ulimit -u)"}));
  }
}

// Runs code of the user's. That may take any time and wait for other calls of this group, so another thread
// takes over meanwhile, if there is anything to advance. False when it has.
bool Endpoint::conclude(Lock& lock) {
  while (!to_conclude_.empty()) {
    auto* completion = to_conclude_.front();
    to_conclude_.erase(to_conclude_.begin());
    has_background_ = false;
    if (!idle() || !to_conclude_.empty()) need_background();
    lock.unlock();
    completion->conclude();
    lock.lock();
    if (has_background_) return false;
    has_background_ = true;
  }
  return true;
}

void Endpoint::run_background(Lock& lock) {
  const std::chrono::microseconds short_pause = inline_ ? kInlinePause : kShortPause;
  const std::chrono::microseconds long_pause = inline_ ? kInlinePause : kLongPause;
  auto pause = short_pause;
  int pauses = 0;
  uint64_t seen = 0;
  for (;;) {
    notify(lock);
    if (!conclude(lock)) return;
    if (idle() && retired_) {
      has_background_ = false;
      return;
    }
    if (!idle() && waiting_ == 0 && inline_ && visits_ != seen) {
      seen = visits_;
      background_.wait_for(lock, kInlinePause);
    } else if (!idle() && waiting_ == 0) {
      pause = short_pause;
      if (progress()) continue;
      sleep(lock);
      pauses = 0;
    } else if (pauses < kPausesBeforeRest || !idle()) {
      background_.wait_for(lock, pause);
      pause = std::min(2 * pause, long_pause);
      ++pauses;
    } else {
      background_rests_ = true;
      background_.wait(lock, [&] { return !idle() || retired_ || !to_conclude_.empty(); });
      background_rests_ = false;
      pause = short_pause;
      pauses = 0;
    }
  }
}

}  // namespace lockstep::shm
