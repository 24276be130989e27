// Carries out calls in which each rank reads the bytes that it takes from the memory of the givers.
//
// Small pieces are inline, in the call slot. Registered pieces are read in place. All others are sent in
// rounds through the givers' staging slots. In round t, a giver copies the next round_bytes of each piece
// into slot t % kStagingSlots, when all ranks have read its previous contents, and raises `staged`. A taker
// reads the round when all givers have staged it, and raises `pulled`.
#pragma once

#include "shm/board.h"
#include "shm/call.h"

namespace lockstep::shm {

// Advances the call as far as possible without waiting, in the end to Stage::Finished. True if it advanced.
bool step_exchange(Board& board, Call& call);

// Copies the next round of this rank's pieces into its staging slot, if the slot is free. True if it was.
bool stage_next(Board& board, Call& call);

}  // namespace lockstep::shm
