// Reading the environment. Every variable of lockstep's own is declared here, in one table, which
// `lockstep info` and docs/tuning.md show.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace lockstep::base {

struct Knob {
  const char* name;
  const char* fallback;  // what holds when it is unset
  const char* meaning;
  bool secret = false;  // its value is never shown
};
std::span<const Knob> knobs();

// An empty value counts as unset.
std::optional<std::string> env_string(const char* name);
// Throws UsageError, naming the variable and its value, when that is not a whole number in [low, high].
std::optional<int64_t> env_int(const char* name, int64_t low = INT64_MIN, int64_t high = INT64_MAX);
// 1/0, true/false, on/off, yes/no; anything else is a UsageError.
bool env_flag(const char* name, bool fallback);

// A whole decimal number and nothing else.
std::optional<int64_t> parse_int(const std::string& text);

}  // namespace lockstep::base
