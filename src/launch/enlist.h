// The first steps of an agent: checks that this node can run the program, and joins the other nodes.
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

// Blocks until all nodes have joined. A stop signal (read from the signalfd `signals`) or the end of the
// guard ends this process: no worker is running yet. Throws CannotStart or another Error; the message is
// empty if it has been printed already.
Enlisted enlist(const RunOptions& options, int signals, int guard,
                const std::function<void(const std::string&)>& print);

}  // namespace lockstep::launch
