// The progress of `lockstep bench` on stderr: on a terminal one line that is rewritten, in a file about ten
// lines, and nothing if quiet. Used by one process at a time.
#pragma once

#include <cstdio>
#include <fmt/format.h>
#include <string>
#include <unistd.h>

namespace lockstep::bench {

class Progress {
 public:
  Progress(int total, bool quiet) : total_(total), quiet_(quiet), terminal_(::isatty(STDERR_FILENO) == 1) {}

  // Row `number` (from 0) begins.
  void begin(int number, const std::string& what) const {
    if (quiet_) return;
    if (terminal_) {
      fmt::print(stderr, "\r\033[K{}/{} rows: {}", number, total_, what);
      std::fflush(stderr);
    } else if (number > 0 && number * kLines / total_ != (number - 1) * kLines / total_) {
      fmt::print(stderr, "{}/{} rows\n", number, total_);
    }
  }
  // Clears the line on the terminal.
  void end() const {
    if (!quiet_ && terminal_) fmt::print(stderr, "\r\033[K");
  }

 private:
  static constexpr int kLines = 10;

  int total_;
  bool quiet_, terminal_;
};

}  // namespace lockstep::bench
