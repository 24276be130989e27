// The limits of this process's control groups: version 2, version 1, or both side by side.
//
// The limits of all groups above a group apply to it as well, so each function returns the smallest limit
// between the process's group and the mount point. A file that cannot be read counts as no limit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace lockstep::tuning {

// CPU time as a number of CPUs: 2.5 for 250 ms in every 100 ms. nullopt: no limit.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");
std::optional<int64_t> memory_limit_bytes(const std::filesystem::path& root = "/");

}  // namespace lockstep::tuning
