// The text of a progress line. Pure: no clock, no output.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::train {

struct ProgressState {
  std::string label;   // see without_controls()
  std::string unit;    // likewise
  int64_t done = 0;    // steps
  int64_t steps = 0;   // 0: not known
  double samples = 0;  // of all ranks; a double, since it may be more than any integer holds
  double elapsed = 0;  // in seconds
  std::optional<double> loss;
  bool finished = false;  // tells the time that it took instead of the time left
};

// How many of `parts` equal parts of the way are done; more than that beyond the end, 0 if that is not known.
int64_t parts_done(const ProgressState& state, int64_t parts);

// One line without a bar, as long as it gets.
std::string plain_line(const ProgressState& state);
// One line with a bar, of at most `width` columns: what has no room is left out.
std::string bar_line(const ProgressState& state, int width, bool colour);

// 0.0123, 12.3, 1.23k, 45.6M, …
std::string short_number(double value);
// 0:07, 12:34, 1:23:45, 12d 03h
std::string duration(double seconds);
// Control characters, which would move the cursor, become spaces.
std::string without_controls(std::string_view text);

}  // namespace lockstep::train
