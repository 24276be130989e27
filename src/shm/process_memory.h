// The memory of this process that its peers can reach: one arena for all groups.
//
// Tensors outlive the groups they were made for: the gradient buckets of a model belong to the process, and
// the next generation of a group reduces them where they are. Every peer of every group maps this memory.
#pragma once

#include <memory>

#include "shm/arena.h"

namespace lockstep::shm {

// Makes it when it is first asked for. A forked child gets one of its own. Thread-safe. Throws SystemError.
std::shared_ptr<Arena> process_memory();

}  // namespace lockstep::shm
