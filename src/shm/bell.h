// How a rank sleeps until another rank has news for it.
//
// The one with news writes it (sequentially consistent) and then rings; the one who waits says that it will
// sleep, looks for news once more, and sleeps. Whichever came second sees the other: no news is slept
// through.
#pragma once

#include <chrono>

#include "shm/layout.h"

namespace lockstep::shm {

// Wakes whoever sleeps at this bell. One load when nobody does.
void ring(BellWords& bell);

// From its construction to its end, this thread counts as a sleeper.
class Sleep {
 public:
  explicit Sleep(BellWords& bell);
  ~Sleep();
  Sleep(const Sleep&) = delete;
  Sleep& operator=(const Sleep&) = delete;

  // Returns when the bell has rung since the construction, after `longest`, or by accident.
  void until_rung(std::chrono::microseconds longest) const;

 private:
  BellWords& bell_;
  uint32_t before_;
};

// Between publishing with a plain store and looking for sleepers: makes the one visible before the other is
// read.
inline void full_fence() {
#if defined(__SANITIZE_THREAD__)
  // The thread sanitizer does not know fences; on the processors it runs on, this is one.
  static std::atomic<int> word{0};
  word.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// For a moment of busy waiting.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace lockstep::shm
