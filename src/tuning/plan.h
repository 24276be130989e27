// How a rank should use the machine it runs on: its CPUs, its threads, its heap.
//
// `lockstep run` and `spawn` plan for the workers they start; init_process_group plans for itself, whoever
// started the process. Nothing here needs LibTorch, and nothing overrides what the user has set.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tuning/topology.h"

namespace lockstep::tuning {

struct Switches {
  bool bind = true;            // LOCKSTEP_BIND
  bool heap = true;            // LOCKSTEP_HEAP
  std::optional<int> threads;  // LOCKSTEP_THREADS; 0: leave alone
};
// Throws UsageError when one of the variables makes no sense.
Switches switches_from_environment();

struct Plan {
  std::vector<int> cpus;  // empty: affinity left alone
  int threads = 0;        // 0: left alone
  bool keep_heap = false;
};

// For a worker about to be started: this process's CPUs are shared by `local_world_size` ranks, this is the
// share of one of them. Throws UsageError when local_rank is not below local_world_size.
Plan plan_for(int local_rank, int local_world_size, const Switches& switches);
// For this process as one of the ranks: as plan_for, but a process that its launcher has bound already
// (lockstep run, mpirun, srun) keeps those CPUs and uses all of them, instead of dividing its share once
// more.
Plan plan_for_self(int local_rank, int local_world_size, const Switches& switches);
// Both rest on this one, which looks at nothing but its arguments and the environment.
Plan plan_on(const Topology& topology, int local_rank, int local_world_size, const Switches& switches);

// What a worker's environment gets before exec, in place of a value that may be there. Nothing in it
// overrides a choice of the user's: GLIBC_TUNABLES comes with the user's own in it. LOCKSTEP_CPUS tells
// plan_for_self that the worker has been bound.
std::vector<std::pair<std::string, std::string>> environment_of(const Plan& plan);

// Both return false when the kernel refuses, and change nothing for an empty set.
bool bind_this_thread(
    const std::vector<int>& cpus) noexcept;            // between fork and exec too: it does not allocate
bool bind_this_process(const std::vector<int>& cpus);  // all threads there are, and those they start

// Makes the C library keep the memory that is freed, from now on; what the user has set in MALLOC_* variables
// or GLIBC_TUNABLES stays. docs/tuning.md says what it costs.
void keep_heap();

// OpenBLAS has a thread pool of its own, which LibTorch does not set. Returns false when no OpenBLAS is
// loaded.
bool set_blas_threads(int threads);

}  // namespace lockstep::tuning
