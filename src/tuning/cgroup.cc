#include "tuning/cgroup.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::tuning {

namespace fs = std::filesystem;

namespace {

bool in_comma_list(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const auto comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == word) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

// The path of this process's group in the hierarchy of `controller` ("" for version 2), parsed from lines
// such as "4:cpu,cpuacct:/docker/17ab" and "0::/user.slice".
std::optional<std::string> group_path(const fs::path& root, std::string_view controller) {
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view controllers(line.data() + first + 1, second - first - 1);
    const bool found = controller.empty() ? controllers.empty() : in_comma_list(controllers, controller);
    if (found) return line.substr(second + 1);
  }
  return std::nullopt;
}

struct Mount {
  std::string top;    // the mounted group; not "/" in a container without a cgroup namespace
  std::string point;  // where it is mounted
};

// Lines of mountinfo: "id parent dev top point options [tags…] - type source superoptions".
std::optional<Mount> hierarchy_mount(const fs::path& root, std::string_view controller) {
  std::ifstream mounts(root / "proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string skip, type, super_options;
    Mount mount;
    words >> skip >> skip >> skip >> mount.top >> mount.point;
    while (words >> skip && skip != "-") {
    }
    words >> type >> skip >> super_options;
    const bool found =
        controller.empty() ? type == "cgroup2" : type == "cgroup" && in_comma_list(super_options, controller);
    if (found) return mount;
  }
  return std::nullopt;
}

// The directories to search, from the process's own group upwards.
std::vector<fs::path> group_directories(const fs::path& root, std::string_view controller) {
  auto path = group_path(root, controller);
  const auto mount = hierarchy_mount(root, controller);
  if (!path || !mount) return {};
  if (mount->top != "/") {
    const bool below = path->starts_with(mount->top) &&
                       (path->size() == mount->top.size() || (*path)[mount->top.size()] == '/');
    *path = below ? path->substr(mount->top.size()) : "";
  }
  const fs::path point = root / fs::path(mount->point).relative_path();
  std::vector<fs::path> directories;
  fs::path group = fs::path(*path).relative_path().lexically_normal();
  // A path that leads out of the mounted tree ("/../other") names a group above it, which is not visible
  // here.
  if (!group.empty() && *group.begin() == "..") group.clear();
  for (; !group.empty(); group = group.parent_path()) directories.push_back(point / group);
  directories.push_back(point);
  return directories;
}

template <class Number>
std::optional<Number> read_number(const fs::path& file) {
  std::ifstream stream(file);
  Number number;
  if (!(stream >> number)) return std::nullopt;  // also for "max"
  return number;
}

template <class Number>
void take_smaller(std::optional<Number>& limit, std::optional<Number> other) {
  if (other && (!limit || *other < *limit)) limit = other;
}

std::optional<double> quota_v2(const fs::path& group) {
  std::ifstream stream(group / "cpu.max");
  double budget = 0, period = 0;
  if (!(stream >> budget >> period) || budget <= 0 || period <= 0) return std::nullopt;
  return budget / period;
}

std::optional<double> quota_v1(const fs::path& group) {
  const auto budget = read_number<double>(group / "cpu.cfs_quota_us");
  const auto period = read_number<double>(group / "cpu.cfs_period_us");
  if (!budget || !period || *budget <= 0 || *period <= 0) return std::nullopt;  // -1: no limit
  return *budget / *period;
}

// In version 1, no limit is represented by the largest multiple of the page size that fits.
std::optional<int64_t> memory_v1(const fs::path& group) {
  const auto bytes = read_number<int64_t>(group / "memory.limit_in_bytes");
  return bytes && *bytes < INT64_MAX - (1 << 20) ? bytes : std::nullopt;
}

}  // namespace

std::optional<double> cpu_quota(const fs::path& root) {
  std::optional<double> quota;
  for (const auto& group : group_directories(root, "")) take_smaller(quota, quota_v2(group));
  for (const auto& group : group_directories(root, "cpu")) take_smaller(quota, quota_v1(group));
  return quota;
}

std::optional<int64_t> memory_limit_bytes(const fs::path& root) {
  std::optional<int64_t> limit;
  for (const auto& group : group_directories(root, "")) {
    take_smaller(limit, read_number<int64_t>(group / "memory.max"));
  }
  for (const auto& group : group_directories(root, "memory")) take_smaller(limit, memory_v1(group));
  return limit;
}

}  // namespace lockstep::tuning
