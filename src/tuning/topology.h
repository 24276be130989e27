// The CPUs that this process may use, and their cores, sockets and NUMA nodes.
//
// All files are read below a root directory, which is "/" except in tests. Containers hide parts of /sys: a
// CPU without files counts as a core of its own on node 0.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::tuning {

struct Cpu {
  int id = 0;
  int node = 0;     // NUMA node
  int package = 0;  // socket
  int core = 0;  // the lowest CPU id of the same physical core, whether this process may use that CPU or not
};

struct Topology {
  std::vector<Cpu> cpus;        // ordered by node, package, core, id: SMT siblings are adjacent
  std::optional<double> quota;  // CPU time that the cgroup allows, as a number of CPUs; nullopt: no limit

  int cores() const;  // physical cores with at least one allowed CPU
  int packages() const;
  int nodes() const;
  // Threads that can run at the same time without sharing a core or being throttled; at least 1.
  int usable_cores() const;
};

// sched_getaffinity(2) of a thread or process (0: the calling thread), ascending. Empty if it cannot be read.
std::vector<int> affinity_of(int pid = 0);

Topology read_topology(const std::vector<int>& allowed, const std::filesystem::path& root = "/");

// "0-3,8,10-11": the format of the kernel and of taskset(1).
std::string format_cpu_list(std::vector<int> cpus);
std::vector<int> parse_cpu_list(std::string_view text);

}  // namespace lockstep::tuning
