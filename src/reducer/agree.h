// Combines what each rank has seen in the learning pass into what all ranks agree on.
#pragma once

#include <lockstep/process_group.h>

#include "reducer/tracker.h"

namespace lockstep::reducer {

// All ranks must call it; it blocks. The order is the leader's; a flag is set if it is set on any rank.
Learned agree(ProcessGroup& group, int leader, const Learned& seen);

}  // namespace lockstep::reducer
