// The endpoint's background thread: advances operations that no thread waits for.
#include <pthread.h>
#include <system_error>
#include <thread>

#include <lockstep/error.h>

#include "base/deadline.h"
#include "base/error_text.h"
#include "base/log.h"
#include "shm/endpoint.h"

namespace lockstep::shm {

namespace {

using namespace std::chrono_literals;

// How often the thread checks whether other threads advance the operations. It wakes on a timer, because an
// operation that is waited for at once should not have to wake it. After some time without operations, it
// sleeps until it is notified.
constexpr auto kShortPause = 200us;
constexpr auto kLongPause = 800us;
constexpr int kPausesBeforeIdle = 64;
// How long it leaves operations to threads that poll them. With inline progress, all its pauses are this
// long: each time it wakes, it takes CPU time from a computing thread of its rank or of another job, and from
// the rank that the others are waiting for.
constexpr auto kInlinePause = 5ms;

}  // namespace

void Endpoint::ensure_background() {
  if (has_background_) {
    if (background_idle_) background_wakeup_.notify_all();
    return;
  }
  const auto run = [self = shared_from_this()] {
    Lock lock(self->mutex_);
    if (!self->board_ && !self->failure_) {
      lock.unlock();
      try {
        self->connect(base::Deadline::in(self->timeout_));
      } catch (const std::exception& error) {
        base::log_debug("{}", error.what());  // stored by connect(): every call throws it
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
                base::compose({.what = "cannot start the background thread of a group",
                               .where = where(nullptr),
                               .evidence = error.what(),
                               .hint = "raise the limit of processes and threads (ulimit -u)"}));
  }
}

void Endpoint::stop_relying_on_polls() {
  if (segment_->inherited()) return;
  unseen_waits_.store(true);
  // Without the lock, the thread may miss it, and then wakes after its pause.
  background_wakeup_.notify_all();
}

// Runs user code, which may take any time and may wait for other operations of this group. So another
// background thread is started first if there is anything to advance. Returns false if that one continues
// instead of this thread.
bool Endpoint::conclude(Lock& lock) {
  while (!to_conclude_.empty()) {
    auto* completion = to_conclude_.front();
    to_conclude_.erase(to_conclude_.begin());
    has_background_ = false;
    if (!idle() || !to_conclude_.empty()) ensure_background();
    lock.unlock();
    completion->conclude();
    lock.lock();
    if (has_background_) return false;
    has_background_ = true;
  }
  return true;
}

void Endpoint::run_background(Lock& lock) {
  // If futures wake the thread, it does not look for operations.
  const auto most_pauses = [&] { return unseen_waits_.load() ? 0 : kPausesBeforeIdle; };
  std::chrono::microseconds pause = kShortPause;
  int pauses = 0;
  uint64_t seen = 0;
  for (;;) {
    notify(lock);
    if (!conclude(lock)) return;
    if (idle() && owners_ == 0) {
      has_background_ = false;
      return;
    }
    if (!idle() && waiting_ == 0 && left_to_pollers() && polls_ != seen) {
      seen = polls_;
      background_wakeup_.wait_for(lock, kInlinePause);
    } else if (!idle() && waiting_ == 0) {
      pause = kShortPause;
      if (progress()) continue;
      sleep(lock);
      pauses = 0;
    } else if (!idle() || pauses < most_pauses()) {
      background_wakeup_.wait_for(lock, inline_progress_ ? kInlinePause : pause);
      pause = std::min<std::chrono::microseconds>(2 * pause, kLongPause);
      ++pauses;
    } else {
      background_idle_ = true;
      background_wakeup_.wait(lock, [&] { return !idle() || owners_ == 0 || !to_conclude_.empty(); });
      background_idle_ = false;
      pause = kShortPause;
      pauses = 0;
    }
  }
}

}  // namespace lockstep::shm
