// Reads environment variables. One table declares all of lockstep's own; `lockstep info` and docs/tuning.md
// show it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace lockstep::base {

struct Knob {
  const char* name;
  const char* fallback;  // what applies when it is unset
  const char* meaning;
  bool secret = false;  // its value is never printed
};
std::span<const Knob> knobs();

// An empty variable counts as unset.
std::optional<std::string> env_string(const char* name);
// Throws UsageError, which names the variable and its value, unless that is a whole number in [low, high].
std::optional<int64_t> env_int(const char* name, int64_t low = INT64_MIN, int64_t high = INT64_MAX);
// 1/0, true/false, on/off, yes/no; anything else is a UsageError.
bool env_flag(const char* name, bool fallback);

// A whole decimal number without anything around it.
std::optional<int64_t> parse_int(const std::string& text);

}  // namespace lockstep::base
