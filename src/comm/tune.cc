#include "comm/tune.h"

#include <algorithm>

#include <ATen/Parallel.h>

#include "base/log.h"
#include "tuning/plan.h"

namespace lockstep::comm {

void tune_process(int rank, const std::vector<RankFacts>& ranks) {
  const auto& mine = ranks.at(rank);
  const bool shared = std::all_of(ranks.begin(), ranks.end(), [&](const RankFacts& other) {
    return other.machine != mine.machine || other.cpus == mine.cpus;
  });
  auto switches = tuning::switches_from_environment();
  // Ranks of one machine with different CPUs have been bound by their launcher (lockstep run, mpirun, srun):
  // each keeps and uses what it was given. With the same CPUs they divide them.
  if (!shared) switches.bind = false;
  const auto placement = placement_of(rank, ranks);
  const auto plan = shared ? tuning::plan_for(placement.local_rank, placement.local_world_size, switches)
                           : tuning::plan_for(0, 1, switches);
  if (!plan.cpus.empty() && !tuning::bind_this_process(plan.cpus)) {
    base::log_info("the kernel refused to bind this rank to CPUs {}", tuning::format_cpu_list(plan.cpus));
  }
  if (plan.threads > 0) {
    at::set_num_threads(plan.threads);
    tuning::set_blas_threads(plan.threads);
  }
  if (plan.keep_heap) tuning::keep_heap();
  base::log_debug("tuned: CPUs {}, {} threads, heap {}",
                  plan.cpus.empty() ? "as given" : tuning::format_cpu_list(plan.cpus), at::get_num_threads(),
                  plan.keep_heap ? "kept" : "as the C library has it");
}

}  // namespace lockstep::comm
