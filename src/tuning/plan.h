// How a rank should use the machine it runs on: its CPUs, its threads, its heap.
//
// `lockstep run` plans for the workers it starts; init_process_group plans for itself, whoever started the
// process. Nothing here needs LibTorch, and nothing overrides what the user has set.
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

// The CPUs of this process are shared by `local_world_size` ranks; this is the plan for one of them. Throws
// UsageError when local_rank is not below local_world_size.
Plan plan_for(int local_rank, int local_world_size, const Switches& switches);
// The same on any machine: looks at nothing but its arguments and the user's OpenMP variables.
Plan plan_on(const Topology& topology, int local_rank, int local_world_size, const Switches& switches);

// What a worker's environment gets before exec, in place of a value that may be there. Nothing in it
// overrides a choice of the user's: GLIBC_TUNABLES comes with the user's own in it.
std::vector<std::pair<std::string, std::string>> environment_of(const Plan& plan);

// Binds the calling thread, and those that it starts. Does not allocate: it may be called between fork and
// exec. An empty set changes nothing. Returns false when the kernel refuses.
bool bind_this_thread(const std::vector<int>& cpus) noexcept;
// The same for every thread of this process.
bool bind_this_process(const std::vector<int>& cpus);

// Makes the C library keep the memory that is freed, from now on; what the user has set in MALLOC_* variables
// or GLIBC_TUNABLES stays. docs/tuning.md says what it costs.
void keep_heap();

// OpenBLAS has a thread pool of its own, which at::set_num_threads leaves as it is. Returns false when no
// OpenBLAS is loaded.
bool set_blas_threads(int threads);

}  // namespace lockstep::tuning
