// Sets the CPU affinity of the calling thread and of this process.
#include <algorithm>
#include <array>
#include <climits>
#include <filesystem>
#include <sched.h>
#include <set>

#include "base/env.h"
#include "tuning/plan.h"

namespace lockstep::tuning {

namespace {

// On the stack, because it is also used between fork and exec, where threads that no longer exist may hold
// malloc's locks. cpu_set_t is limited to 1024 CPUs; the kernel accepts masks longer than its own.
class CpuMask {
 public:
  explicit CpuMask(const std::vector<int>& cpus) noexcept {
    for (const int cpu : cpus) {
      if (cpu >= 0 && cpu < kMostCpus) words_[cpu / kBits] |= 1UL << (cpu % kBits);
    }
  }
  bool apply_to(pid_t thread) const noexcept {
    return ::sched_setaffinity(thread, sizeof words_, reinterpret_cast<const cpu_set_t*>(words_.data())) == 0;
  }

 private:
  static constexpr int kMostCpus = 1 << 15;
  static constexpr int kBits = CHAR_BIT * sizeof(unsigned long);
  std::array<unsigned long, kMostCpus / kBits> words_{};
};

}  // namespace

bool bind_this_thread(const std::vector<int>& cpus) noexcept {
  return cpus.empty() || CpuMask(cpus).apply_to(0);
}

bool bind_this_process(const std::vector<int>& cpus) {
  if (cpus.empty()) return true;
  const CpuMask mask(cpus);
  if (!mask.apply_to(0)) return false;
  // A thread that is not bound yet may start another one during the scan: repeat until a scan finds no new
  // one.
  std::set<int64_t> bound;
  for (bool found = true; found;) {
    found = false;
    std::error_code no_proc;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", no_proc)) {
      const auto thread = base::parse_int(entry.path().filename());
      if (!thread || !bound.insert(*thread).second) continue;
      found = true;
      mask.apply_to(static_cast<pid_t>(*thread));  // fails only if the thread has ended
    }
  }
  return true;
}

}  // namespace lockstep::tuning
