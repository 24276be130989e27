// Whether the calls of two ranks belong together, and what to report when they don't.
#pragma once

#include <string>

#include "comm/request.h"
#include "shm/layout.h"

namespace lockstep::shm {

class Board;

// "all_reduce of 1000 Float, Sum"; "broadcast of 10 Float, root 0"; the label of an exchange of the control
// lane.
std::string describe(const CallSlot& slot);

bool same_call(const comm::Request& mine, const CallWords& theirs);

// Thrown by the engine; the endpoint, which knows the ranks' names, makes a MismatchError of it.
struct Disagreement {
  int rank;           // the other one
  std::string here;   // what this rank does
  std::string there;  // what the other does
  bool in_message = false;
};

// Thrown by the engine when bytes came from memory of a rank that has failed meanwhile: they may be anything.
struct FailedPeer {
  int rank;
};

}  // namespace lockstep::shm
