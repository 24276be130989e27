#include "shm/bell.h"

#include <climits>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lockstep::shm {

namespace {

// The words are shared between processes, so FUTEX_PRIVATE_FLAG must not be set.
void futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  ::syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

}  // namespace

void ring(BellWords& bell) {
  if (bell.sleepers.load(std::memory_order_seq_cst) == 0) return;
  bell.rung.fetch_add(1, std::memory_order_seq_cst);
  futex(bell.rung, FUTEX_WAKE, INT_MAX, nullptr);
}

Sleep::Sleep(BellWords& bell) : bell_(bell), before_(bell.rung.load(std::memory_order_seq_cst)) {
  bell_.sleepers.fetch_add(1, std::memory_order_seq_cst);
}

Sleep::~Sleep() { bell_.sleepers.fetch_sub(1, std::memory_order_seq_cst); }

void Sleep::until_rung(std::chrono::microseconds longest) const {
  const timespec timeout{.tv_sec = longest.count() / 1000000, .tv_nsec = longest.count() % 1000000 * 1000};
  futex(bell_.rung, FUTEX_WAIT, before_, &timeout);
}

}  // namespace lockstep::shm
