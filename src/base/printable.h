// Text that others wrote, made safe to show: nothing in it steers the terminal or looks like another line.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::base {

// UTF-8 stays as it is. Control characters (line ends too), marks that turn the direction of writing, and
// bytes that are no UTF-8 become escapes: \n, \x1b, \u202e.
std::string printable(std::string_view text);

// Removes the first character of a text that is not empty, and returns it as above: for those who cut texts
// or keep their lines.
std::string take_printable(std::string_view& text);

// The same in quotation marks, with those inside escaped, and not too long: for messages.
std::string quote(std::string_view text);

}  // namespace lockstep::base
