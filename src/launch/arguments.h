// The command line of `lockstep run`. Pure, apart from looking at the environment and the machine.
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

// `arguments`: what follows "lockstep run". Throws UsageError with what was given and what it should be.
std::variant<RunOptions, HelpText> parse_run_arguments(const std::vector<std::string>& arguments);

// "host", "host:port", "[v6]:port". Throws UsageError.
struct Endpoint {
  std::string host;
  std::optional<uint16_t> port;
};
Endpoint parse_endpoint(const std::string& text);

}  // namespace lockstep::launch
