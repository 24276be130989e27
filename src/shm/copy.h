// Copies bytes between the ranks' memory.
#pragma once

#include <cstddef>

namespace lockstep::shm {

// Plain vector loads and stores. The C library's memcpy turns to string instructions for large pieces, which
// are several times slower on lines that another core has just read or written.
void copy_bytes(void* to, const void* from, size_t bytes);

// Past the caches, where ordinary stores would first fetch what they overwrite: from memory, when `to` is too
// large to be in a cache (25 MiB: 1.2 ms instead of 2.0), or from another core that has just read it, which
// cores that share no cache but the last do at a quarter of the speed.
void stream_bytes(void* to, const void* from, size_t bytes);

}  // namespace lockstep::shm
