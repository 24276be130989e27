// The limits that this process's control groups set: version 2, version 1, or both side by side.
//
// A group is bound by its own limit and by those of every group above it, so each answer is the smallest on
// the way from the process's group up to the mount point. What cannot be read does not limit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace lockstep::tuning {

// CPUs' worth of time: 2.5 for 250 ms of every 100 ms. None: no limit.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");
std::optional<int64_t> memory_limit_bytes(const std::filesystem::path& root = "/");

}  // namespace lockstep::tuning
