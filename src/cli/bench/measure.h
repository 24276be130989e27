// One rank's part in `lockstep bench`.
#pragma once

#include <functional>

#include "cli/bench/options.h"
#include "cli/bench/progress.h"
#include "cli/bench/row.h"

namespace lockstep::bench {

// What rank 0 hands over as it goes: {"row": …} for each row, {"unavailable": name, "why": text} for each
// backend that is not there.
using Sink = std::function<void(const Json&)>;

// Every rank of a world that spawn() has started must call it; only rank 0 uses `sink` and `progress`.
// `rows_before` were measured in other worlds. The groups of all backends live side by side, so that the
// variants of a row can take turns. Throws what a group throws, except that a variant which is refused with
// UsageError is only marked.
void measure_world(const Options& options, int rank, int rows_before, const Progress& progress,
                   const Sink& sink);

}  // namespace lockstep::bench
