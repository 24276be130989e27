// Plans how a rank uses its machine: CPUs, threads, heap.
//
// `lockstep run` plans for the workers that it starts; init_process_group plans for its own process, whatever
// started it. Does not need LibTorch, and never overrides what the user has set.
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
  std::optional<int> threads;  // LOCKSTEP_THREADS; 0: do not change
};
// Throws UsageError if one of the variables has an invalid value.
Switches switches_from_environment();

struct Plan {
  std::vector<int> cpus;  // empty: do not change the affinity
  int threads = 0;        // 0: do not change
  bool keep_heap = false;
};

// The plan for one of `local_world_size` ranks that share the CPUs of this process. Throws UsageError unless
// local_rank is in [0, local_world_size).
Plan plan_for(int local_rank, int local_world_size, const Switches& switches);
// The same for any machine: depends only on its arguments and the user's OpenMP variables.
Plan plan_on(const Topology& topology, int local_rank, int local_world_size, const Switches& switches);

// Variables to set in a worker's environment before exec, replacing values of the same name. They override no
// choice of the user: GLIBC_TUNABLES includes the user's own tunables.
std::vector<std::pair<std::string, std::string>> environment_of(const Plan& plan);

// Binds the calling thread and the threads that it will start. Does not allocate, so it may be called between
// fork and exec. An empty set changes nothing. Returns false if the kernel refuses.
bool bind_this_thread(const std::vector<int>& cpus) noexcept;
// Binds every thread of this process.
bool bind_this_process(const std::vector<int>& cpus);

// From now on the C library keeps freed memory instead of returning it to the kernel. What the user has set
// in MALLOC_* variables or GLIBC_TUNABLES is kept. Costs: docs/tuning.md.
void keep_heap();

// Sets the size of OpenBLAS's own thread pool, which at::set_num_threads does not change. Returns false if
// OpenBLAS is not loaded.
bool set_blas_threads(int threads);

}  // namespace lockstep::tuning
