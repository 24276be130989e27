// Copies bytes between the ranks' memory.
#pragma once

#include <cstddef>

namespace lockstep::shm {

// With plain vector loads and stores. For large sizes, the C library's memcpy uses string instructions, which
// are several times slower on cache lines that another core has just read or written.
void copy_bytes(void* to, const void* from, size_t bytes);

// With non-temporal stores. Ordinary stores would first fetch the lines that they overwrite: from memory, if
// `to` is too large for a cache (25 MiB: 1.2 ms instead of 2.0), or from another core that has just read
// them, at a quarter of the speed if the cores share only the last-level cache.
void stream_bytes(void* to, const void* from, size_t bytes);

}  // namespace lockstep::shm
