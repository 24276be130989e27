#include "shm/kernels.h"

#include <algorithm>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace lockstep::shm {

namespace {

#if defined(__x86_64__)
// Not every compiler's __builtin_cpu_supports() accepts "f16c".
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

// Checks for exactly the features that kernels_avx2.cc and kernels_avx512.cc are compiled for. The builtin
// also checks whether the operating system saves the wide registers.
Isa detect_isa() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !has_f16c()) return Isa::Plain;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return Isa::Avx512;
  }
  return Isa::Avx2;
#else
  return Isa::Plain;
#endif
}

}  // namespace

size_t size_of(Element element) {
  switch (element) {
    case Element::Int8:
    case Element::UInt8:
    case Element::Bool:
      return 1;
    case Element::Half:
    case Element::BFloat16:
    case Element::Int16:
      return 2;
    case Element::Float:
    case Element::Int32:
      return 4;
    case Element::Double:
    case Element::Int64:
    case Element::ComplexFloat:
      return 8;
    case Element::ComplexDouble:
      return 16;
  }
  return 0;
}

Isa best_isa() {
  static const Isa isa = detect_isa();
  return isa;
}

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::Plain:
      return "plain";
    case Isa::Avx2:
      return "AVX2";
    case Isa::Avx512:
      return "AVX-512";
  }
  return "?";
}

Kernel find_kernel(Element element, Combine combine, Isa isa) {
#if defined(__x86_64__)
  switch (std::min(isa, best_isa())) {
    case Isa::Avx512:
      return avx512::find(element, combine);
    case Isa::Avx2:
      return avx2::find(element, combine);
    case Isa::Plain:
      break;
  }
#else
  static_cast<void>(isa);
#endif
  return plain::find(element, combine);
}

}  // namespace lockstep::shm
