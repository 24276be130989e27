// Finds the ranks that block a call, from the shared words: those that could advance and do not. Ranks that
// wait for them, like this one, are not included.
#pragma once

#include <vector>

#include "shm/board.h"
#include "shm/call.h"

namespace lockstep::shm {

// The last call that a rank has arrived at; its number is 0 if there is none.
const CallSlot& last_call(const Board& board, int rank);

// The ranks that have not arrived at this call, without those that wait for one of them in an earlier call.
std::vector<int> absent_ranks(const Board& board, uint64_t number);

// For a call at which all ranks have arrived: the ranks that could do their next step and have not. `call` is
// under way on this rank, or finished with memory that other ranks may still read.
std::vector<int> late_ranks(const Board& board, const Call& call);

}  // namespace lockstep::shm
