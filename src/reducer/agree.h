// What all ranks have learned, from what each has seen.
#pragma once

#include <lockstep/process_group.h>

#include "reducer/tracker.h"

namespace lockstep::reducer {

// All ranks must call it.
Learned agree(ProcessGroup& group, int leader, const Learned& seen);

}  // namespace lockstep::reducer
