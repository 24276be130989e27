// Memory and a clock that all ranks of a test share, independent of the code under test.
#pragma once

#include <chrono>
#include <new>
#include <stdexcept>
#include <sys/mman.h>

namespace lockstep::testing {

// One T in memory that is shared with processes forked later. T consists of lock-free atomics.
template <class T>
class Shared {
 public:
  Shared() {
    void* memory = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("mmap failed");
    value_ = new (memory) T();
  }
  ~Shared() { ::munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }

 private:
  T* value_;
};

// Time of the steady clock, which is the same in all processes of a machine.
inline int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace lockstep::testing
