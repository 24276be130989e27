// Arranges a call between the ranks before any byte is moved: where each rank's bytes are, whether the ranks
// make the same call, which algorithm carries it out, and in how many rounds.
#pragma once

#include <algorithm>

#include "shm/board.h"
#include "shm/call.h"
#include "shm/relocated.h"

namespace lockstep::shm {

// Before arrival: chooses where this rank's bytes for the call are. Copies small ones into the call slot.
Where expose(Board& board, Relocated& relocated, Call& call, CallSlot& slot);

// When all ranks have arrived: chooses the algorithm and the rounds. `next_round` is the group's number of
// rounds so far; it is raised by the same number on all ranks. Throws Disagreement if the calls differ.
void begin(Board& board, Call& call, uint64_t& next_round);

// The inline data of an all-to-all starts with a table: the number of bytes for each rank.
inline size_t table_bytes(const Board& board, Kind kind) {
  return kind == Kind::AllToAll ? board.world_size() * sizeof(uint64_t) : 0;
}
inline const uint64_t* lengths_of(const Board& board, const Call& call, int giver) {
  return reinterpret_cast<const uint64_t*>(board.call(giver, call.number).bytes);
}

// Whether this rank's bytes go through its staging slots.
inline bool is_stager(const Call& call, int rank) {
  return !call.stagers.empty() &&
         std::find(call.stagers.begin(), call.stagers.end(), rank) != call.stagers.end();
}

}  // namespace lockstep::shm
