// The two algorithms for a large all-reduce. Both reduce in rank order, so every rank gets the same bits.
#pragma once

#include "shm/board.h"
#include "shm/call.h"

namespace lockstep::shm {

// Algorithm::Claims. All ranks' tensors are registered. A rank claims the next chunk, reads it from every
// rank and writes the result to every rank. Each byte is read once and written once, and no rank waits for
// one that is busy elsewhere. With Effort::OwnPart, this rank claims at most its share of the chunks.
bool step_claims(Board& board, Call& call, Effort effort);

// Algorithm::Parts. In each round, every rank stages a chunk and reduces one part of it in its own staging
// slot; then all ranks copy the parts out.
bool step_parts(Board& board, Call& call);

}  // namespace lockstep::shm
