// Carries out every collective in which each rank reads what it takes from where the others have put it.
//
// Small pieces travel in the call itself; registered ones are read where they are; the rest goes in rounds
// through the givers' staging slots. In round t a giver puts the next round_bytes of each piece into slot
// t % kStagingSlots, when everybody has read what was there before, and says so by raising `staged`; a taker
// reads the round when all givers have staged it, and raises `pulled`.
#pragma once

#include "shm/board.h"
#include "shm/call.h"

namespace lockstep::shm {

// Where this rank's bytes for the call will be; writes the small ones into the call's slot. Before arrival.
Where expose(Board& board, const Call& call, CallSlot& slot);

// When all ranks have arrived: fixes ways and rounds. `next_round` is the group's count of rounds, which this
// moves on by the same number on all ranks. Throws Disagreement when the calls do not fit together.
void begin(Board& board, Call& call, uint64_t& next_round);

// Does what can be done now, without waiting; true if that was anything. Ends with Stage::Finished.
bool step_exchange(Board& board, Call& call);

// Copies the next round of this rank's pieces into its staging slot, if the slot is free; true if it was.
bool stage_next(Board& board, Call& call);

}  // namespace lockstep::shm
