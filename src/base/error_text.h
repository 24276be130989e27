// Composes the messages of lockstep's errors, so that each says the same things in the same order.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::base {

struct ErrorText {
  std::string what;      // what failed
  std::string where;     // rank/world, host, collective, sequence number, name, bytes
  std::string evidence;  // what was seen: missing ranks, errno text, output
  std::string hint;      // the next thing to do
};

// "what (where): evidence\nhint: hint"; parts that are empty are left out.
std::string compose(const ErrorText& text);

// "Connection refused (errno 111)"
std::string errno_text(int error_number);

// Throws the error class that `kind` names (Error::kind()), or Error itself for a name nobody knows.
// This is how an error that was written down in one process is thrown again in another.
[[noreturn]] void throw_kind(std::string_view kind, const std::string& message,
                             const std::vector<int>& culprits = {});

}  // namespace lockstep::base
