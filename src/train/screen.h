// The output of the progress bar: a terminal, a file or a pipe.
//
// Never waits for a reader longer than the given patience, and never throws: it stays silent after an error.
#pragma once

#include <chrono>
#include <string_view>

#include "base/deadline.h"

namespace lockstep::train {

class Screen {
 public:
  // The caller owns the descriptor. Reads TERM and NO_COLOR.
  explicit Screen(int fd);

  // Whether a line can be erased and drawn again.
  bool redraws() const { return redraws_; }
  bool colours() const { return colours_; }
  // The current width in columns; the user may resize the window.
  int width() const;
  // Writes all of the text, or nothing if there is no room for it in time. False: nothing was written, or an
  // error cut the text off.
  bool write(std::string_view text, std::chrono::milliseconds patience);

 private:
  bool ready(const base::Deadline& deadline);

  int fd_;
  bool redraws_, colours_;
  bool broken_;
};

}  // namespace lockstep::train
