// A program on LibTorch that does nothing but say when it came to main(), by CLOCK_MONOTONIC: what every
// program on LibTorch takes to start, whatever it does then. bench/startup/part.py shows it beside lockstep.
#include <chrono>
#include <cstdio>
#include <unistd.h>

#include <ATen/Parallel.h>

int main() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  std::printf("%lld\n",
              static_cast<long long>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()));
  std::fflush(stdout);
  ::_exit(at::get_num_threads() > 0 ? 0 : 1);  // a call, so that the linker does not leave LibTorch out
}
