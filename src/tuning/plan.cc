#include "tuning/plan.h"

#include <algorithm>
#include <cstdint>
#include <fmt/format.h>

#include <lockstep/error.h>

#include "base/env.h"
#include "base/error_text.h"
#include "tuning/heap.h"

namespace lockstep::tuning {

namespace {

bool is_set(const char* name) { return base::env_string(name).has_value(); }

// Whether the user has asked OpenMP to bind its threads. The OpenMP runtime does so when it is loaded, and
// also binds the thread that loads it. The original affinity of this process is then unknown, so affinity and
// threads are left to OpenMP.
bool openmp_binds() {
  const auto bind = base::env_string("OMP_PROC_BIND");
  if (bind) return *bind != "false" && *bind != "FALSE";
  return is_set("GOMP_CPU_AFFINITY") || is_set("KMP_AFFINITY") || is_set("OMP_PLACES");
}

// The range [first, last) of `total` elements for share `index` of `count`. Sizes differ by at most one.
std::pair<int, int> share(int total, int index, int count) {
  return {static_cast<int>(int64_t{total} * index / count),
          static_cast<int>(int64_t{total} * (index + 1) / count)};
}

using Core = std::vector<int>;  // its CPUs

std::vector<int> cpus_of(const std::vector<Core>& cores, std::pair<int, int> range) {
  std::vector<int> cpus;
  for (int i = range.first; i < range.second; ++i) cpus.insert(cpus.end(), cores[i].begin(), cores[i].end());
  return cpus;
}

// The number of ranks on each NUMA node if no rank may span two nodes. Assigns one rank after the other to
// the node with the most cores per rank afterwards, which maximises the smallest share.
std::vector<int> ranks_of_each_node(const std::vector<std::vector<Core>>& nodes, int ranks) {
  std::vector<int> taken(nodes.size(), 0);
  for (int rank = 0; rank < ranks; ++rank) {
    size_t best = 0;
    for (size_t node = 1; node < nodes.size(); ++node) {
      // cores / (taken + 1), compared without fractions
      if (nodes[node].size() * (taken[best] + 1) > nodes[best].size() * (taken[node] + 1)) best = node;
    }
    ++taken[best];
  }
  return taken;
}

std::vector<int> cpus_for(const Topology& topology, int rank, int ranks, int threads) {
  const int cpu_count = static_cast<int>(topology.cpus.size());
  if (ranks > cpu_count) return {};
  if (ranks > topology.cores()) {
    std::vector<int> cpus;
    const auto [first, last] = share(cpu_count, rank, ranks);
    for (int i = first; i < last; ++i) cpus.push_back(topology.cpus[i].id);
    return cpus;
  }

  std::vector<Core> cores;
  std::vector<std::vector<Core>> nodes;
  const Cpu* before = nullptr;
  for (const auto& cpu : topology.cpus) {
    const bool new_node = before == nullptr || cpu.node != before->node;
    if (new_node) nodes.emplace_back();
    if (new_node || cpu.core != before->core) {
      cores.emplace_back();
      nodes.back().emplace_back();
    }
    cores.back().push_back(cpu.id);
    nodes.back().back().push_back(cpu.id);
    before = &cpu;
  }

  // Keep each rank on one node, unless some rank would then have fewer cores than threads: all ranks wait for
  // the slowest, and a rank without enough cores is slower than one that spans two nodes.
  const auto taken = ranks_of_each_node(nodes, ranks);
  bool enough = true;
  for (size_t node = 0; node < nodes.size(); ++node) {
    if (taken[node] > 0 && static_cast<int>(nodes[node].size()) / taken[node] < threads) enough = false;
  }
  if (!enough) return cpus_of(cores, share(static_cast<int>(cores.size()), rank, ranks));
  size_t node = 0;
  for (; rank >= taken[node]; ++node) rank -= taken[node];
  return cpus_of(nodes[node], share(static_cast<int>(nodes[node].size()), rank, taken[node]));
}

}  // namespace

Switches switches_from_environment() {
  Switches switches;
  switches.bind = base::env_flag("LOCKSTEP_BIND", true);
  switches.heap = base::env_flag("LOCKSTEP_HEAP", true);
  if (const auto threads = base::env_int("LOCKSTEP_THREADS", 0, 1 << 16)) {
    switches.threads = static_cast<int>(*threads);
  }
  return switches;
}

Plan plan_on(const Topology& topology, int local_rank, int local_world_size, const Switches& switches) {
  if (local_rank < 0 || local_rank >= local_world_size) {
    throw UsageError(base::compose(
        {.what = "cannot choose CPUs and threads for this rank",
         .evidence = fmt::format("local rank {} is not among {} local ranks", local_rank, local_world_size),
         .hint = "check LOCAL_RANK and LOCAL_WORLD_SIZE"}));
  }
  Plan plan{.keep_heap = switches.heap};
  const bool by_hand = openmp_binds();
  const int share_of_cores = std::max(topology.usable_cores() / local_world_size, 1);
  if (!is_set("OMP_NUM_THREADS")) plan.threads = switches.threads.value_or(by_hand ? 0 : share_of_cores);
  // A single rank needs no binding: no other rank competes for its cores.
  if (switches.bind && local_world_size > 1 && !by_hand) {
    plan.cpus = cpus_for(topology, local_rank, local_world_size, share_of_cores);
  }
  return plan;
}

Plan plan_for(int local_rank, int local_world_size, const Switches& switches) {
  return plan_on(read_topology(affinity_of()), local_rank, local_world_size, switches);
}

std::vector<std::pair<std::string, std::string>> environment_of(const Plan& plan) {
  std::vector<std::pair<std::string, std::string>> variables;
  // LibTorch and MKL use OpenMP's number of threads, and so does OpenBLAS unless OPENBLAS_NUM_THREADS is set.
  if (plan.threads > 0 && !is_set("OMP_NUM_THREADS")) {
    variables.emplace_back("OMP_NUM_THREADS", std::to_string(plan.threads));
  }
  // Idle threads sleep instead of spinning, which frees their cores for the other thread pool and other
  // programs.
  if (plan.threads > 1) {
    if (!is_set("OMP_WAIT_POLICY") && !is_set("GOMP_SPINCOUNT")) {
      variables.emplace_back("OMP_WAIT_POLICY", "passive");
    }
    if (!is_set("OPENBLAS_THREAD_TIMEOUT")) variables.emplace_back("OPENBLAS_THREAD_TIMEOUT", "16");
  }
  if (plan.keep_heap) {
    for (auto& variable : heap_environment()) variables.push_back(std::move(variable));
  }
  return variables;
}

}  // namespace lockstep::tuning
