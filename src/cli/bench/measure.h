// The part of one rank in `lockstep bench`.
#pragma once

#include <functional>

#include "cli/bench/options.h"
#include "cli/bench/progress.h"
#include "cli/bench/row.h"

namespace lockstep::bench {

// Receives the results of rank 0 one by one: {"row": …} for each row, {"unavailable": name, "why": text} for
// each backend that is not available.
using Sink = std::function<void(const Json&)>;

// Every rank of a world started by spawn() must call this; only rank 0 uses `sink` and `progress`.
// `rows_before` is the number of rows already measured in other worlds. The groups of all backends exist at
// the same time, so that the variants of a row can take turns. Throws what a group throws, except that a
// variant that throws UsageError is only marked as refused.
void measure_world(const Options& options, int rank, int rows_before, const Progress& progress,
                   const Sink& sink);

}  // namespace lockstep::bench
