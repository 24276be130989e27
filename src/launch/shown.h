// Text from other processes and machines, made fit for our terminal: it may hold escape sequences that move
// the cursor or set the title, and lines that look like ours. Pure.
//
// What could do harm is shown as what it is, "\x1b"; the rest of UTF-8 stays. All of this may be done to a
// text again without changing it further.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::launch {

// One line: a newline in it is escaped, too. Longer than `most_bytes` (at least 8), it is cut, with "…" at
// its end.
std::string shown_line(std::string_view text, size_t most_bytes);

// Several lines: each but the first begins with `indent`, so that none can be taken for a line of ours or of
// a rank. "" when the caller will see to that.
constexpr std::string_view kHanging = "  ";
std::string shown_lines(std::string_view text, size_t most_bytes, std::string_view indent);

}  // namespace lockstep::launch
