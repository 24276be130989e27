#include "optim/rules.h"

#include <algorithm>

namespace lockstep::optim {

namespace {

// Checks for exactly the features that the other files are compiled for. The builtin also checks whether the
// operating system saves the wide registers.
Isa detect_isa() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::Plain;
  return __builtin_cpu_supports("avx512f") ? Isa::Avx512 : Isa::Avx2;
#else
  return Isa::Plain;
#endif
}

}  // namespace

Isa best_isa() {
  static const Isa isa = detect_isa();
  return isa;
}

Update find_update(Rule rule, bool fused, Isa isa) {
#if defined(__x86_64__)
  switch (std::min(isa, best_isa())) {
    case Isa::Avx512:
      return avx512::find(rule, fused);
    case Isa::Avx2:
      return avx2::find(rule, fused);
    case Isa::Plain:
      break;
  }
#else
  static_cast<void>(isa);
#endif
  return plain::find(rule, fused);
}

}  // namespace lockstep::optim
