// Parses the command line of `lockstep run`. Reads the environment and the machine's properties, and has no
// side effects.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launch/options.h"

namespace lockstep::launch {

struct HelpText {
  std::string text;
};

// `arguments`: the words after "lockstep run". Throws UsageError with the value that was given and the values
// that are allowed.
std::variant<RunOptions, HelpText> parse_run_arguments(const std::vector<std::string>& arguments);

// "host", "host:port", "[v6]:port". Throws UsageError.
struct Endpoint {
  std::string host;
  std::optional<uint16_t> port;
};
Endpoint parse_endpoint(const std::string& text);

}  // namespace lockstep::launch
