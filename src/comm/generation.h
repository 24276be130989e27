// Makes the handle of a group refer to another generation, for groups that are rebuilt while a model exists.
#pragma once

#include <cstdint>
#include <memory>

#include <lockstep/process_group.h>

namespace lockstep::comm {

// The generation to which a handle refers now.
const std::shared_ptr<ProcessGroup::Impl>& generation_of(const ProcessGroup& handle);
// Unique among the generations of this process.
uint64_t generation_number(const ProcessGroup& handle);

// Makes `handle` refer to the generation of `other`. Every rank of the new generation must call it between
// two steps, from the thread that trains, while no call is in progress on the old generation.
void point_at(ProcessGroup& handle, const ProcessGroup& other);

}  // namespace lockstep::comm
