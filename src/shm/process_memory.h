// The memory of this process that its peers can access: one arena for all groups.
//
// Tensors outlive the groups that they were allocated for: the gradient buckets of a model belong to the
// process, and the next generation of a group reduces them in place. Every peer of every group maps this
// memory.
#pragma once

#include <memory>

#include "shm/arena.h"
#include "shm/relocated.h"

namespace lockstep::shm {

struct ProcessMemory {
  std::shared_ptr<Arena> arena;
  std::shared_ptr<Relocated> relocated;  // in the arena
};

// Created by the first call. A forked child gets its own. Thread-safe. Throws SystemError.
ProcessMemory process_memory();

}  // namespace lockstep::shm
