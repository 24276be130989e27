// One call of each kind, for tests that treat all kinds alike.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <lockstep/process_group.h>

namespace lockstep::testing {

struct Kind {
  std::string name;
  // A word that messages about this call contain.
  std::string word;
  // Starts the call with about `count` floats on each rank. The calls of all ranks belong together; a root is
  // rank 0.
  std::function<std::vector<Work>(ProcessGroup& group, int64_t count)> start;
  // Whether this rank cannot finish without `absent`, regardless of how the engine works. (A root may already
  // have given its data.)
  std::function<bool(int rank, int absent)> needs;

  void run(ProcessGroup& group, int64_t count) const {
    for (auto& work : start(group, count)) work.wait();
  }
};

const std::vector<Kind>& all_kinds();

}  // namespace lockstep::testing
