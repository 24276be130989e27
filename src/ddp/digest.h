// A fast hash of bytes, the same on all machines.
#pragma once

#define XXH_INLINE_ALL
#include <cstddef>
#include <cstdint>
#include <xxhash.h>

namespace lockstep::ddp {

inline int64_t digest(const void* bytes, size_t count) {
  return static_cast<int64_t>(XXH3_64bits(bytes, count));
}

}  // namespace lockstep::ddp
