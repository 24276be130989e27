// How far `lockstep bench` is, on stderr: one line that is rewritten on a terminal, a line now and then in a
// file, nothing when it is to be quiet. Used by one process at a time.
#pragma once

#include <cstdio>
#include <fmt/format.h>
#include <string>
#include <unistd.h>

namespace lockstep::bench {

class Progress {
 public:
  Progress(int total, bool quiet) : total_(total), quiet_(quiet), terminal_(::isatty(STDERR_FILENO) == 1) {}

  // Row `number` (from 0) of all begins.
  void begin(int number, const std::string& what) const {
    if (quiet_) return;
    if (terminal_) {
      fmt::print(stderr, "\r\033[K{}/{} rows: {}", number, total_, what);
      std::fflush(stderr);
    } else if (number > 0 && number * kLines / total_ != (number - 1) * kLines / total_) {
      fmt::print(stderr, "{}/{} rows\n", number, total_);
    }
  }
  // Leaves the terminal's line empty for what comes next.
  void end() const {
    if (!quiet_ && terminal_) fmt::print(stderr, "\r\033[K");
  }

 private:
  static constexpr int kLines = 10;

  int total_;
  bool quiet_, terminal_;
};

}  // namespace lockstep::bench
