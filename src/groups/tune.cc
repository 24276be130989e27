#include "groups/tune.h"

#include <algorithm>

#include <ATen/Parallel.h>

#include "base/log.h"
#include "tuning/blas.h"
#include "tuning/plan.h"

namespace lockstep::groups {

namespace {

// Reduces the number of threads to this rank's share; increases it only if the user asked for that. The
// thread pools of LibTorch and of OpenBLAS keep spinning for a while when they are idle. If both have threads
// on the same cores, each slows the other down more than it gains. How they wait can be set only before a
// process starts; `lockstep run` does that.
void limit_threads(int threads, bool asked) {
  if (asked || at::get_num_threads() > threads) at::set_num_threads(threads);
  if (asked || tuning::loaded_blas().threads.value_or(0) > threads) tuning::set_blas_threads(threads);
}

}  // namespace

void tune_process(int rank, const std::vector<rendezvous::RankFacts>& ranks) {
  const auto& mine = ranks.at(rank);
  const bool shared = std::all_of(ranks.begin(), ranks.end(), [&](const rendezvous::RankFacts& other) {
    return other.machine != mine.machine || other.cpus == mine.cpus;
  });
  auto switches = tuning::switches_from_environment();
  // If the ranks on one machine have different CPUs, their launcher has bound them (lockstep run, mpirun,
  // srun): each keeps and uses its own. If they have the same CPUs, they divide them.
  if (!shared) switches.bind = false;
  const auto placement = rendezvous::placement_of(rank, ranks);
  const auto plan = shared ? tuning::plan_for(placement.local_rank, placement.local_world_size, switches)
                           : tuning::plan_for(0, 1, switches);
  if (!plan.cpus.empty() && !tuning::bind_this_process(plan.cpus)) {
    base::log_info("the kernel refused to bind this rank to CPUs {}", tuning::format_cpu_list(plan.cpus));
  }
  if (plan.threads > 0) limit_threads(plan.threads, switches.threads.has_value());
  if (plan.keep_heap) tuning::keep_heap();
  base::log_debug("tuned: CPUs {}, {} threads, heap {}",
                  plan.cpus.empty() ? "unchanged" : tuning::format_cpu_list(plan.cpus), at::get_num_threads(),
                  plan.keep_heap ? "kept" : "unchanged");
}

}  // namespace lockstep::groups
