#include "summary.h"

#include <fmt/format.h>

#include "numbers.h"

namespace demo {

std::string summary_of(const std::vector<Run>& runs) {
  auto out = fmt::format("{:<28} {:>9} {:>9} {:>9} {:>7} {:>9} {:>8}\n", "", "s/epoch", "images/s",
                         "speed-up", "loss", "accuracy", "waiting");
  for (const auto& run : runs) {
    const auto speed = speed_up(runs, run);
    const auto waiting = run.world_size > 1 ? fmt::format("{:.1f} %", 100 * run.exposed_share()) : "-";
    out += fmt::format("{:<28} {:>9.2f} {:>9} {:>9} {:>7.4f} {:>7.2f} % {:>8}\n", run.name(),
                       run.seconds() / static_cast<double>(run.epochs.size()), grouped(run.rate()),
                       speed.empty() ? "-" : speed + "x", run.epochs.back().loss,
                       100 * run.epochs.back().accuracy, waiting);
  }
  out += "waiting: the share of the training time in which communication blocked computation\n";
  if (const Run* run = disturbed_one(runs)) {
    out += fmt::format(
        "NOTE: other programs were running: \"{}\" had {:.2f} cores on average. These times cannot be "
        "compared;\n"
        "run the demo again on an idle machine.\n",
        run->name(), run->cpu_seconds / run->seconds());
  }
  for (const auto& run : runs) {
    if (run.world_size == 1) continue;
    out += fmt::format("\nreplicas identical: {}\n", run.identical() ? "yes" : "NO");
    for (size_t rank = 0; rank < run.replicas.size(); ++rank) {
      out += fmt::format("  rank {}  {}\n", rank, run.replicas[rank]);
    }
    if (!run.snapshot.empty()) out += fmt::format("snapshot: {}\n", run.snapshot);
  }
  return out;
}

}  // namespace demo
