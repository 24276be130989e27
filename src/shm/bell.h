// Lets a thread of a rank sleep until another rank has published something.
//
// The publisher writes its word (sequentially consistent) and then rings. The waiting thread registers as a
// sleeper (sequentially consistent), checks the word again, and then sleeps. Whichever of the two is second
// in the total order sees the other, so no wakeup is lost.
#pragma once

#include <chrono>

#include "shm/layout.h"

namespace lockstep::shm {

// Wakes all threads that sleep on this bell. Costs one load if there are none.
void ring(BellWords& bell);

// While this object exists, the thread is registered as a sleeper.
class Sleep {
 public:
  explicit Sleep(BellWords& bell);
  ~Sleep();
  Sleep(const Sleep&) = delete;
  Sleep& operator=(const Sleep&) = delete;

  // Returns when the bell has rung since construction, after `longest`, or spuriously.
  void until_rung(std::chrono::microseconds longest) const;

 private:
  BellWords& bell_;
  uint32_t before_;
};

// Between a release store that publishes a word and the check for sleepers: the word is visible before the
// sleepers are read.
inline void full_fence() {
#if defined(__SANITIZE_THREAD__)
  // The thread sanitizer does not support fences. On the processors that it supports, this is one.
  static std::atomic<int> word{0};
  word.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// One iteration of busy waiting.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace lockstep::shm
