// Composes error messages, so that all of them have the same parts in the same order.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::base {

struct ErrorText {
  std::string what;      // what failed
  std::string where;     // rank/world, host, collective, sequence number, name, bytes
  std::string evidence;  // what was observed: missing ranks, errno text, output
  std::string hint;      // what to do next
};

// "what (where): evidence\nhint: hint"; empty parts are omitted.
std::string compose(const ErrorText& text);

// "Connection refused (errno 111)"
std::string errno_text(int error_number);

// In place of a message, for what was thrown and has none.
inline constexpr const char* kNoMessage = "an exception that is not a std::exception";

// Throws the error class that `kind` names (Error::kind()), or Error for an unknown name. Rethrows in this
// process an error that another process has sent as text.
[[noreturn]] void throw_kind(std::string_view kind, const std::string& message,
                             const std::vector<int>& culprits = {});

}  // namespace lockstep::base
