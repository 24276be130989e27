// Points a group's handle at another generation: the room for groups that are rebuilt while a model lives.
#pragma once

#include <cstdint>
#include <memory>

#include <lockstep/process_group.h>

namespace lockstep::comm {

// The generation that a handle points at now.
const std::shared_ptr<ProcessGroup::Impl>& generation_of(const ProcessGroup& handle);
// Different for any two generations of this process.
uint64_t generation_number(const ProcessGroup& handle);

// From now on `handle` means the ranks that `other` means. Every rank of the new generation must do it
// between two steps, with nothing under way on the old one, from the thread that trains.
void point_at(ProcessGroup& handle, const ProcessGroup& other);

}  // namespace lockstep::comm
