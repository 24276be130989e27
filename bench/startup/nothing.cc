// A LibTorch program that only prints the time at which it reached main(), from CLOCK_MONOTONIC: the start-up
// time of every LibTorch program. bench/startup/part.py compares it with lockstep.
#include <chrono>
#include <cstdio>
#include <unistd.h>

#include <ATen/Parallel.h>

int main() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  std::printf("%lld\n",
              static_cast<long long>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()));
  std::fflush(stdout);
  ::_exit(at::get_num_threads() > 0 ? 0 : 1);  // a call, so that the linker keeps LibTorch
}
