#include "groups/tune.h"

#include <algorithm>

#include <ATen/Parallel.h>

#include "base/log.h"
#include "tuning/blas.h"
#include "tuning/plan.h"

namespace lockstep::groups {

namespace {

// Down to this rank's share, and up only if the user asked: LibTorch's pool and OpenBLAS's each keep spinning
// for a while when they have nothing to do, and with both on the same cores each slows the other down more
// than it gains. How they wait can be set only before a process starts, which is what `lockstep run` does.
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
  // Ranks of one machine with different CPUs have been bound by their launcher (lockstep run, mpirun, srun):
  // each keeps and uses what it was given. With the same CPUs they divide them.
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
                  plan.cpus.empty() ? "as given" : tuning::format_cpu_list(plan.cpus), at::get_num_threads(),
                  plan.keep_heap ? "kept" : "as the C library has it");
}

}  // namespace lockstep::groups
