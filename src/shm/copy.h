// Copies bytes between the ranks' memory.
#pragma once

#include <cstddef>

#include "shm/kernels.h"

namespace lockstep::shm {

// Plain vector loads and stores. The C library's memcpy turns to string instructions for large pieces, which are
// several times slower on lines that another core has just read or written.
inline void copy_bytes(void* to, const void* from, size_t bytes) {
  static const Kernel kernel = find_kernel(Element::UInt8, Combine::Bor);
  if (bytes != 0 && to != from) kernel(&to, 1, &from, 1, bytes, 1);
}

}  // namespace lockstep::shm
