// Compares the calls of two ranks, and describes them for errors.
#pragma once

#include <string>

#include "comm/request.h"
#include "shm/layout.h"

namespace lockstep::shm {

// "all_reduce of 1000 Float, Sum"; "broadcast of 10 Float, root 0"; in the control lane, the label of the
// exchange.
std::string describe(const CallSlot& slot);

bool same_call(const CallWords& mine, const CallWords& theirs);

// Thrown by the engine. The endpoint, which knows the ranks' names, turns it into a MismatchError.
struct Disagreement {
  int rank;           // the other rank
  std::string here;   // this rank's operation
  std::string there;  // the other rank's operation
  bool in_message = false;
};

// Thrown by the engine if bytes were read from the memory of a rank that has failed: they are undefined.
struct FailedPeer {
  int rank;
};

}  // namespace lockstep::shm
