// Escapes untrusted text for display: the result cannot control the terminal or imitate another line.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::base {

// Valid UTF-8 is kept. Control characters (including line ends), marks that change the writing direction, and
// bytes that are not UTF-8 become escapes: \n, \x1b, \u202e.
std::string printable(std::string_view text);

// Removes the first character of a non-empty text and returns it escaped as above: for code that truncates
// texts or keeps their lines.
std::string take_printable(std::string_view& text);

// The text escaped, in quotation marks (those inside are escaped, too) and truncated: for messages.
std::string quote(std::string_view text);

}  // namespace lockstep::base
