// Whether the calls of two ranks belong together, and what to say when they don't.
#pragma once

#include <string>

#include "shm/layout.h"
#include "shm/request.h"

namespace lockstep::shm {

// "all_reduce of 1000 Float, Sum"; "broadcast of 10 Float from rank 0".
std::string describe(const CallWords& call);

bool same_call(const Request& mine, const CallWords& theirs);

// Thrown by the engine; the endpoint, which knows the ranks' names, makes a MismatchError of it.
struct Disagreement {
  int rank;           // the other one
  std::string here;   // what this rank does
  std::string there;  // what the other does
  bool in_message = false;
};

// Thrown by the engine when bytes came from memory of a rank that has failed meanwhile: they may be anything.
struct Tainted {
  int rank;
};

}  // namespace lockstep::shm
