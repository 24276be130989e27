// Algorithm::Update. Each rank reduces its part of what all ranks give, where it lies in their memory,
// transforms it, and writes the result to what all ranks take. Each byte is read once and written once.
#pragma once

#include <cstdint>
#include <optional>

#include "comm/update.h"
#include "shm/board.h"
#include "shm/call.h"

namespace lockstep::shm {

// The part of `count` elements that a rank transforms: whole cache lines.
comm::Range updated_part(int rank, int world_size, int64_t count, size_t element_bytes);

// Before arrival: publishes where this rank's memory is. Throws UsageError if it is not registered.
Where expose_update(Board& board, Call& call, CallSlot& slot);

// The offset in this rank's memory to which all ranks write; nothing if they write elsewhere.
std::optional<uint64_t> update_target(const Board& board, const Request& request);

bool step_update(Board& board, Call& call);

}  // namespace lockstep::shm
