// Who holds a call up: what the shared words tell of ranks that could go on and do not. Those who wait for
// them, as this rank does, are not among them.
#pragma once

#include <vector>

#include "shm/board.h"
#include "shm/call.h"

namespace lockstep::shm {

// The last call that a rank has come to; its number is 0 if there was none.
const CallSlot& last_call(const Board& board, int rank);

// The ranks that have not come to this call, but for those that wait in an earlier one for another of them.
std::vector<int> absent_ranks(const Board& board, uint64_t number);

// Of a call to which all have come: the ranks that have not done what they could. `call` is under way on this
// rank, or finished, with memory that others may still read.
std::vector<int> late_ranks(const Board& board, const Call& call);

}  // namespace lockstep::shm
