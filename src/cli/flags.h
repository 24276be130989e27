// What the commands share that take their flags as text and interpret them, so that the error messages are
// lockstep's own and not CLI11's. All functions throw UsageError.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <string>
#include <vector>

#include <lockstep/error.h>

#include "base/env.h"
#include "base/error_text.h"
#include "launch/nearest.h"

namespace lockstep::cli {

[[noreturn]] inline void refuse(const std::string& flag, const std::string& value,
                                const std::string& evidence, const std::string& hint = "") {
  throw UsageError(base::compose(
      {.what = fmt::format("{} \"{}\" is invalid", flag, value), .evidence = evidence, .hint = hint}));
}

inline int64_t whole_number(const std::string& flag, const std::string& text, int64_t low, int64_t high) {
  const auto number = base::parse_int(text);
  if (number && *number >= low && *number <= high) return *number;
  refuse(flag, text, fmt::format("it must be a whole number from {} to {}", low, high));
}

// The position of the word among those that are known.
inline size_t position_of(const std::string& flag, const std::string& word,
                          const std::vector<std::string>& known) {
  const auto found = std::find(known.begin(), known.end(), word);
  if (found != known.end()) return static_cast<size_t>(found - known.begin());
  const auto near = launch::nearest(word, known);
  refuse(flag, word, fmt::format("there are: {}", fmt::join(known, ", ")),
         near.empty() ? "" : fmt::format("did you mean {}?", near));
}

// For an app that allows extras: refuses the first one. `program` is the name in the hint.
[[noreturn]] inline void refuse_extra(const CLI::App& app, const std::string& program) {
  const auto word = app.remaining().front();
  std::vector<std::string> known;
  for (const auto* option : app.get_options()) known.push_back("--" + option->get_lnames().front());
  const auto near = launch::nearest(word.substr(0, word.find('=')), known);
  throw UsageError(base::compose({.what = fmt::format("unknown argument \"{}\"", word),
                                  .hint = near.empty() ? fmt::format("{} --help shows all flags", program)
                                                       : fmt::format("did you mean {}?", near)}));
}

}  // namespace lockstep::cli
