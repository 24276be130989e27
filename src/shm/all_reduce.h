// The two ways of a large all-reduce. Both take the ranks in order, so that every rank gets the same bits.
#pragma once

#include "shm/board.h"
#include "shm/call.h"

namespace lockstep::shm {

// Way::Claims. All ranks' tensors are registered: whoever has time claims the next chunk, reads it from every
// rank and writes the result to every rank. Each byte is read once and written once, and a rank that is busy
// elsewhere holds nobody up. Effort::OwnPart claims no more than this rank's part of the chunks in all.
bool step_claims(Board& board, Call& call, Effort effort);

// Way::Parts. Rounds of staged chunks, of each of which every rank reduces one part in its own staging slot;
// then all copy the parts out.
bool step_parts(Board& board, Call& call);

}  // namespace lockstep::shm
