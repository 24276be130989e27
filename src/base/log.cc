#include "base/log.h"

#include <memory>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "base/env.h"

namespace lockstep::base {

namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::Debug:
      return spdlog::level::debug;
    case LogLevel::Info:
      return spdlog::level::info;
    case LogLevel::Warn:
      return spdlog::level::warn;
    case LogLevel::Error:
      return spdlog::level::err;
    case LogLevel::Off:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

std::shared_ptr<spdlog::logger> make_logger() {
  auto logger =
      std::make_shared<spdlog::logger>("lockstep", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  const std::string wanted = env_string("LOCKSTEP_LOG").value_or("warn");
  const auto level = spdlog::level::from_str(wanted);
  // from_str returns "off" for an unknown level, and a typo must not silence errors.
  const bool unknown = level == spdlog::level::off && wanted != "off";
  logger->set_level(unknown ? spdlog::level::warn : level);
  logger->set_pattern("lockstep %l: %v");
  if (unknown)
    logger->warn("unknown LOCKSTEP_LOG \"{}\": it must be debug, info, warn, error or off", wanted);
  return logger;
}

// Never destroyed, because destructors of static objects may still log.
spdlog::logger& logger() {
  static auto* const instance = new std::shared_ptr<spdlog::logger>(make_logger());
  return **instance;
}

}  // namespace

void set_log_rank(int rank, int world_size) {
  logger().set_pattern(fmt::format("lockstep[{}/{}] %l: %v", rank, world_size));
}

bool log_enabled(LogLevel level) { return logger().should_log(to_spdlog(level)); }

void log_line(LogLevel level, std::string_view line) {
  logger().log(to_spdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace lockstep::base
