// One call of each kind, for tests that do the same to all of them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <lockstep/process_group.h>

namespace lockstep::testing {

struct Kind {
  std::string name;
  // What messages about it say at least.
  std::string word;
  // Makes the call with about this many floats on each rank; the ranks' calls belong together. Calls that
  // have a root have it at rank 0.
  std::function<std::vector<Work>(ProcessGroup& group, int64_t count)> start;
  // Whether this rank's part cannot be done without `absent`, whatever way the engine works. (A root may
  // have handed out its data before anybody looks at it.)
  std::function<bool(int rank, int absent)> needs;

  void run(ProcessGroup& group, int64_t count) const {
    for (auto& work : start(group, count)) work.wait();
  }
};

const std::vector<Kind>& all_kinds();

}  // namespace lockstep::testing
