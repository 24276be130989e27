// The CPUs that this process may use, and how they hang together.
//
// Everything is read below a root directory, "/" outside of tests. Containers hide parts of /sys: a CPU whose
// files are missing is a core of its own, on node 0.
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
  int core = 0;     // the lowest id among the CPUs of the same physical core, allowed or not
};

struct Topology {
  std::vector<Cpu> cpus;        // ordered by node, package, core, id: SMT siblings stand together
  std::optional<double> quota;  // CPUs' worth of time that the cgroup allows; none: no limit

  int cores() const;  // physical cores with at least one allowed CPU
  int packages() const;
  int nodes() const;
  // Threads that can run at the same time without sharing a core or being throttled; at least 1.
  int usable_cores() const;
};

// sched_getaffinity of a thread or process (0: the calling thread), ascending. Empty when it cannot be read.
std::vector<int> affinity_of(int pid = 0);

Topology read_topology(const std::vector<int>& allowed, const std::filesystem::path& root = "/");

// "0-3,8,10-11", as the kernel writes it and taskset takes it.
std::string format_cpu_list(std::vector<int> cpus);
std::vector<int> parse_cpu_list(std::string_view text);

}  // namespace lockstep::tuning
