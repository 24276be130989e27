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
    Knob{"LOCKSTEP_LOG", "warn", "lowest level that is logged to stderr: debug, info, warn, error or off"},
    Knob{"LOCKSTEP_BACKEND", "auto",
         "backend of programs whose InitOptions::backend is \"auto\": auto, shm, gloo, hybrid or nccl"},
    Knob{"LOCKSTEP_LINK", "auto",
         "what connects the machines of the backend hybrid: auto (Gloo), gloo or mpi; the same on all ranks"},
    Knob{"LOCKSTEP_MACHINE", "none",
         "ranks with different values are treated as being on different machines, to try that on one"},
    Knob{"LOCKSTEP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME, else the interface that routes to the master",
         "network interfaces that connect the machines, separated by commas; several are used together"},
    Knob{"LOCKSTEP_BIND", "1", "0: do not change the CPU affinity of the ranks"},
    Knob{"LOCKSTEP_THREADS", "cores / local ranks",
         "compute threads per rank; 0: do not change their number (OMP_NUM_THREADS takes precedence)"},
    Knob{"LOCKSTEP_SPIN_US", "100, or 20 with more ranks than CPUs",
         "how long a rank that waits in shared memory spins before it sleeps, in microseconds"},
    Knob{"LOCKSTEP_PROGRESS", "thread with spare CPUs, else inline",
         "what drives collectives that nobody waits for: a thread of their own (thread), or the backward "
         "pass as it runs (inline)"},
    Knob{"LOCKSTEP_RELOCATE", "on",
         "large tensors that are reduced again and again are moved into shared memory, at their addresses"},
    Knob{"LOCKSTEP_TOKEN", "lockstep run creates one for a job on one machine",
         "the secret that admits a process to its job; at least 16 characters", true},
    Knob{"LOCKSTEP_TOKEN_FILE", "none", "a file that contains the token; only its owner may have access"},
    Knob{"LOCKSTEP_CHECK_CALLS", "1",
         "0: over Gloo, do not check that all ranks make the same calls. Only for measuring the cost of the "
         "check; must be the same on all ranks"},
    Knob{"LOCKSTEP_HEAP", "1", "0: let the C library return freed memory to the kernel at every step"},
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
        compose({.what = fmt::format("environment variable {} is invalid", name),
                 .evidence = fmt::format("its value is \"{}\", but it must be {}", *text, wanted),
                 .hint = fmt::format("correct {0} or unset it", name)}));
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
  throw UsageError(compose({.what = fmt::format("environment variable {} is invalid", name),
                            .evidence = fmt::format("its value is \"{}\", but it must be 1 or 0", *text),
                            .hint = fmt::format("correct {0} or unset it", name)}));
}

}  // namespace lockstep::base
