// The first steps of an agent: can this node run the program at all, and who else is in the job.
#pragma once

#include <functional>
#include <string>

#include "launch/membership.h"
#include "launch/options.h"

namespace lockstep::launch {

struct Enlisted {
  Membership membership;
  std::string path;  // of the program
};

// Blocks until all nodes are there. A stop signal (from the signalfd `signals`) or the death of the guard
// ends this process: no worker runs yet. Throws CannotStart or another Error, with an empty message when it
// has been said already.
Enlisted enlist(const RunOptions& options, int signals, int guard,
                const std::function<void(const std::string&)>& say);

}  // namespace lockstep::launch
