// Writes log lines to stderr, each with the rank: "lockstep[1/4] warning: …". LOCKSTEP_LOG sets the level.
// Thread-safe: each line is written with one call.
#pragma once

#include <fmt/format.h>
#include <string_view>

namespace lockstep::base {

enum class LogLevel { Debug, Info, Warn, Error, Off };

// Until this is called, lines have no rank.
void set_log_rank(int rank, int world_size);
bool log_enabled(LogLevel level);
void log_line(LogLevel level, std::string_view line);

template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::Debug, format, std::forward<Args>(args)...);
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::Info, format, std::forward<Args>(args)...);
}
template <class... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::Warn, format, std::forward<Args>(args)...);
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::Error, format, std::forward<Args>(args)...);
}

}  // namespace lockstep::base
