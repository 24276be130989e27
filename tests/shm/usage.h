// The resources of this process, as counted by the kernel.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <sys/resource.h>

namespace lockstep::testing {

inline int entries_of(const std::string& directory) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) ++count;
  return count;
}

inline int open_descriptors() { return entries_of("/proc/self/fd"); }
inline int running_threads() { return entries_of("/proc/self/task"); }

inline int64_t resident_kib() {
  std::ifstream file("/proc/self/status");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("VmRSS:")) return std::stoll(line.substr(6));
  }
  return -1;
}

// Whether a file of /dev/shm is mapped into this process.
inline bool maps_dev_shm() {
  std::ifstream file("/proc/self/maps");
  std::string line;
  while (std::getline(file, line)) {
    if (line.find("/dev/shm/") != std::string::npos) return true;
  }
  return false;
}

inline std::set<std::string> names_in(const std::string& directory) {
  std::set<std::string> names;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(directory, missing))
    names.insert(entry.path().filename());
  return names;
}

// User and system time of all threads of this process.
inline double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) { return time.tv_sec + time.tv_usec / 1e6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace lockstep::testing
