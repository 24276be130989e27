// Memory that the C library keeps after it was freed, for later allocations (src/tuning/heap.h makes it keep
// all).
#pragma once

namespace lockstep::base {

// Returns it to the kernel: after large tensors were freed for good. Takes milliseconds; later allocations
// fetch their pages again. Thread-safe.
void release_freed_memory();

}  // namespace lockstep::base
