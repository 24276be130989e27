// Makes text from other processes and machines safe for the terminal: it may contain escape sequences that
// move the cursor or set the title, and lines that imitate ours. No side effects.
//
// Harmful characters are replaced by escapes such as "\x1b"; other UTF-8 text is unchanged. The functions are
// idempotent.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::launch {

// For one line: newlines are escaped, too. A result of more than `most_bytes` (at least 8) is truncated and
// ends with "…".
std::string shown_line(std::string_view text, size_t most_bytes);

// For several lines: each line except the first begins with `indent`, so that it cannot imitate a line of
// ours or of a rank. "" if the calling code indents the lines.
constexpr std::string_view kHanging = "  ";
std::string shown_lines(std::string_view text, size_t most_bytes, std::string_view indent);

}  // namespace lockstep::launch
