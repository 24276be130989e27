// Makes the text of a progress line. Pure functions: no clock, no output.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::train {

struct ProgressState {
  std::string label;   // see without_controls()
  std::string unit;    // see without_controls()
  int64_t done = 0;    // steps made
  int64_t steps = 0;   // 0: not known
  double samples = 0;  // of all ranks; a double, because the sum may overflow an integer
  double elapsed = 0;  // seconds
  std::optional<double> loss;
  bool finished = false;  // shows the elapsed instead of the remaining time
};

// How many of `parts` equal parts of all steps are done; more than `parts` after the last step, 0 if the
// number of steps is not known.
int64_t parts_done(const ProgressState& state, int64_t parts);

// A line without a bar, of any length.
std::string plain_line(const ProgressState& state);
// A line with a bar, of at most `width` columns; parts that do not fit are left out.
std::string bar_line(const ProgressState& state, int width, bool colour);

// 0.0123, 12.3, 1.23k, 45.6M, …
std::string short_number(double value);
// 0:07, 12:34, 1:23:45, 12d 03h
std::string duration(double seconds);
// Replaces control characters, which would move the cursor, by spaces.
std::string without_controls(std::string_view text);

}  // namespace lockstep::train
