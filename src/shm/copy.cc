#include "shm/copy.h"

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "shm/kernels.h"

namespace lockstep::shm {

void copy_bytes(void* to, const void* from, size_t bytes) {
  // A reduction with one source is a copy.
  static const Kernel kernel = find_kernel(Element::UInt8, Combine::Bor);
  constexpr size_t kSmall = 256;
  if (to == from || bytes == 0) return;
  if (bytes <= kSmall) {
    std::memcpy(to, from, bytes);
  } else {
    kernel(&to, 1, &from, 1, bytes, 1);
  }
}

#ifdef __SSE2__

void stream_bytes(void* to, const void* from, size_t bytes) {
  constexpr size_t kLine = 64;
  constexpr size_t kSmallestStreamed = 4096;
  if (bytes < kSmallestStreamed) {
    copy_bytes(to, from, bytes);
    return;
  }
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  std::memcpy(target, source, head);
  target += head;
  source += head;
  bytes -= head;
  const size_t whole = bytes / kLine * kLine;
  for (size_t at = 0; at < whole; at += kLine) {
    for (size_t part = 0; part < kLine; part += sizeof(__m128i)) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(target + at + part),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + at + part)));
    }
  }
  std::memcpy(target + whole, source + whole, bytes - whole);
  _mm_sfence();  // non-temporal stores become visible before the word that publishes them
}

#else

void stream_bytes(void* to, const void* from, size_t bytes) { copy_bytes(to, from, bytes); }

#endif

}  // namespace lockstep::shm
