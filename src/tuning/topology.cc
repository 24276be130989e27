#include "tuning/topology.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <sched.h>
#include <set>
#include <tuple>

#include "tuning/cgroup.h"

namespace lockstep::tuning {

namespace fs = std::filesystem;

namespace {

std::optional<std::string> first_line(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  if (!std::getline(stream, line)) return std::nullopt;
  return line;
}

std::optional<int> number_in(const fs::path& file) {
  const auto line = first_line(file);
  if (!line) return std::nullopt;
  int number = 0;
  const auto [rest, error] = std::from_chars(line->data(), line->data() + line->size(), number);
  if (error != std::errc()) return std::nullopt;
  return number;
}

std::map<int, int> node_of_each_cpu(const fs::path& root) {
  std::map<int, int> nodes;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(root / "sys/devices/system/node", missing)) {
    const std::string name = entry.path().filename();
    int node = 0;
    if (!name.starts_with("node")) continue;
    const auto [rest, error] = std::from_chars(name.data() + 4, name.data() + name.size(), node);
    if (error != std::errc() || rest != name.data() + name.size()) continue;
    for (const int cpu : parse_cpu_list(first_line(entry.path() / "cpulist").value_or(""))) nodes[cpu] = node;
  }
  return nodes;
}

// The lowest CPU of a core identifies it. core_id does not: each socket numbers its cores from 0.
int core_of(int cpu, const fs::path& topology) {
  // The names since Linux 5.3 and before.
  for (const char* name : {"core_cpus_list", "thread_siblings_list"}) {
    const auto siblings = parse_cpu_list(first_line(topology / name).value_or(""));
    if (std::find(siblings.begin(), siblings.end(), cpu) != siblings.end()) return siblings.front();
  }
  return cpu;
}

template <class Key>
int count_distinct(const std::vector<Cpu>& cpus, Key key) {
  std::set<int> seen;
  for (const auto& cpu : cpus) seen.insert(key(cpu));
  return static_cast<int>(seen.size());
}

}  // namespace

int Topology::cores() const {
  return count_distinct(cpus, [](const Cpu& cpu) { return cpu.core; });
}

int Topology::packages() const {
  return count_distinct(cpus, [](const Cpu& cpu) { return cpu.package; });
}

int Topology::nodes() const {
  return count_distinct(cpus, [](const Cpu& cpu) { return cpu.node; });
}

int Topology::usable_cores() const {
  // Rounded down: other threads would wait for one that gets only part of a core's time.
  const int by_quota = quota && *quota < cores() ? static_cast<int>(*quota) : cores();
  return std::max(by_quota, 1);
}

std::vector<int> affinity_of(int pid) {
  // The kernel rejects a mask shorter than its own, and does not report the required size.
  for (int most = 1024; most <= 1 << 20; most *= 2) {
    cpu_set_t* mask = CPU_ALLOC(most);
    if (mask == nullptr) return {};
    const size_t bytes = CPU_ALLOC_SIZE(most);
    CPU_ZERO_S(bytes, mask);
    const bool read = ::sched_getaffinity(pid, bytes, mask) == 0;
    const int why = errno;
    std::vector<int> cpus;
    for (int cpu = 0; read && cpu < most; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, mask)) cpus.push_back(cpu);
    }
    CPU_FREE(mask);
    if (read || why != EINVAL) return cpus;
  }
  return {};
}

Topology read_topology(const std::vector<int>& allowed, const fs::path& root) {
  Topology topology;
  const auto nodes = node_of_each_cpu(root);
  for (const int id : allowed) {
    const auto files = root / fmt::format("sys/devices/system/cpu/cpu{}/topology", id);
    const auto node = nodes.find(id);
    topology.cpus.push_back({.id = id,
                             .node = node == nodes.end() ? 0 : node->second,
                             // -1 on machines that do not report sockets.
                             .package = std::max(number_in(files / "physical_package_id").value_or(0), 0),
                             .core = core_of(id, files)});
  }
  std::sort(topology.cpus.begin(), topology.cpus.end(), [](const Cpu& a, const Cpu& b) {
    return std::tie(a.node, a.package, a.core, a.id) < std::tie(b.node, b.package, b.core, b.id);
  });
  topology.quota = cpu_quota(root);
  return topology;
}

std::string format_cpu_list(std::vector<int> cpus) {
  std::sort(cpus.begin(), cpus.end());
  std::string text;
  for (size_t first = 0; first < cpus.size();) {
    size_t last = first;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += first == last ? fmt::format("{}", cpus[first]) : fmt::format("{}-{}", cpus[first], cpus[last]);
    first = last + 1;
  }
  return text;
}

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    int first = 0;
    auto [rest, error] = std::from_chars(at, end, first);
    if (error != std::errc()) break;
    int last = first;
    if (rest != end && *rest == '-') {
      const auto range = std::from_chars(rest + 1, end, last);
      if (range.ec != std::errc()) break;
      rest = range.ptr;
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (rest == end || *rest != ',') break;
    at = rest + 1;
  }
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

}  // namespace lockstep::tuning
