#include "base/env.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <fmt/format.h>

#include <lockstep/error.h>

#include "base/error_text.h"

namespace lockstep::base {

namespace {

constexpr std::array kKnobs = {
    Knob{"LOCKSTEP_LOG", "warn", "what is logged to stderr: debug, info, warn, error or off"},
    Knob{"LOCKSTEP_BACKEND", "auto", "the backend where InitOptions::backend is \"auto\": auto, shm or gloo"},
    Knob{"LOCKSTEP_BIND", "1", "0: leave each rank's CPU affinity as it was given"},
    Knob{"LOCKSTEP_THREADS", "cores / local ranks",
         "compute threads of each rank; 0: leave them as they are (OMP_NUM_THREADS, when set, wins)"},
    Knob{"LOCKSTEP_SPIN_US", "100, or 0 with more ranks than CPUs",
         "how long a rank that waits in shared memory keeps its core busy before it sleeps"},
    Knob{"LOCKSTEP_PROGRESS", "thread with spare CPUs, else inline",
         "who carries on collectives that nobody waits for: a thread, or the backward pass as it goes by "
         "(inline)"},
    Knob{"LOCKSTEP_TOKEN", "lockstep run makes one for a job on one machine",
         "the secret that admits a process to its job; at least 16 characters", true},
    Knob{"LOCKSTEP_TOKEN_FILE", "none", "a file, readable by its owner only, that holds the token"},
    Knob{"LOCKSTEP_CHECK_CALLS", "1",
         "0: over Gloo, ranks that make different calls are not found. To measure what the search costs, and "
         "for "
         "nothing else; the same on all ranks"},
    Knob{"LOCKSTEP_HEAP", "1", "0: let the C library give freed memory back to the kernel at every step"},
};

}  // namespace

std::span<const Knob> knobs() { return kKnobs; }

std::optional<std::string> env_string(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<int64_t> parse_int(const std::string& text) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end) return std::nullopt;
  return number;
}

std::optional<int64_t> env_int(const char* name, int64_t low, int64_t high) {
  const auto text = env_string(name);
  if (!text) return std::nullopt;
  const auto number = parse_int(*text);
  if (!number || *number < low || *number > high) {
    std::string wanted = "a whole number";
    if (low != INT64_MIN && high != INT64_MAX) {
      wanted += fmt::format(" from {} to {}", low, high);
    } else if (low != INT64_MIN) {
      wanted += fmt::format(", {} or more", low);
    }
    throw UsageError(
        compose({.what = fmt::format("environment variable {} is not usable", name),
                 .evidence = fmt::format("its value is \"{}\", but it must be {}", *text, wanted),
                 .hint = fmt::format("correct {0}, or unset it", name)}));
  }
  return number;
}

bool env_flag(const char* name, bool fallback) {
  const auto text = env_string(name);
  if (!text) return fallback;
  for (const char* yes : {"1", "true", "on", "yes"}) {
    if (*text == yes) return true;
  }
  for (const char* no : {"0", "false", "off", "no"}) {
    if (*text == no) return false;
  }
  throw UsageError(compose({.what = fmt::format("environment variable {} is not usable", name),
                            .evidence = fmt::format("its value is \"{}\", but it must be 1 or 0", *text),
                            .hint = fmt::format("correct {0}, or unset it", name)}));
}

}  // namespace lockstep::base
