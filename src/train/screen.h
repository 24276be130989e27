// Where progress is shown: a terminal, or a file or pipe.
//
// Never waits for a reader longer than it is told to, and never throws: after an error it is silent.
#pragma once

#include <chrono>
#include <string_view>

#include "base/deadline.h"

namespace lockstep::train {

class Screen {
 public:
  // The descriptor stays the caller's. TERM and NO_COLOR are read here.
  explicit Screen(int fd);

  // A line on it can be taken back and drawn again.
  bool redraws() const { return redraws_; }
  bool colours() const { return colours_; }
  // In columns, now: windows change their size.
  int width() const;
  // All of it, or nothing if there is no room for it in time. False: nothing, or cut off by an error.
  bool write(std::string_view text, std::chrono::milliseconds patience);

 private:
  bool ready(const base::Deadline& deadline);

  int fd_;
  bool redraws_, colours_;
  bool broken_;
};

}  // namespace lockstep::train
