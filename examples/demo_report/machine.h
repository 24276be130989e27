// Describes the machine of the runs, which is the machine that runs the report.
#pragma once

#include <ctime>
#include <fstream>
#include <sched.h>
#include <string>
#include <sys/utsname.h>

namespace demo {

struct Machine {
  std::string cpu, kernel, date;
  int cores = 0;  // available to this process
};

inline Machine this_machine() {
  Machine machine{.cpu = "unknown processor"};
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const auto colon = line.find(": ");
    if (!line.starts_with("model name") || colon == std::string::npos) continue;
    machine.cpu = line.substr(colon + 2);
    break;
  }
  utsname names{};
  if (uname(&names) == 0) machine.kernel = std::string(names.sysname) + " " + names.release;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) machine.cores = CPU_COUNT(&allowed);
  const std::time_t now = std::time(nullptr);
  std::string text(32, '\0');
  text.resize(std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M", std::localtime(&now)));
  machine.date = text;
  return machine;
}

}  // namespace demo
