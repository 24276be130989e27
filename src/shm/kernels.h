// Element-wise reduction: the arithmetic of the shared-memory engine.
//
// Each kernel exists once per instruction set, and all of them give the same bits: sources are taken strictly
// in order, nothing is fused or reassociated, and a NaN in a result is always the one positive quiet NaN of
// its type, whatever NaNs went in. (An x86 sum of two NaNs is one of its operands, and which one is the
// compiler's choice.) This holds for the default floating-point environment: round to nearest.
// Thread-safe: there is no state.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::shm {

enum class Element : uint8_t {
  Float,
  Double,
  Half,
  BFloat16,
  Int8,
  UInt8,
  Int16,
  Int32,
  Int64,
  Bool,
  ComplexFloat,
  ComplexDouble
};
size_t size_of(Element element);

enum class Combine : uint8_t { Sum, Avg, Product, Min, Max, Band, Bor, Bxor };

// Each includes those before it.
enum class Isa { Plain, Avx2, Avx512 };
Isa best_isa();  // of this CPU
const char* name_of(Isa isa);

// dst[k][i] = src[0][i] op src[1][i] op …, for every k < dst_count and i < count.
//
// Needs a source and a destination at least; nothing needs to be aligned. A destination may be a source, from
// its first byte on; otherwise they do not overlap.
//   Avg             the sum divided by `divisor`, which the other operations ignore
//   Half, BFloat16  computed in fp32 over all sources, then rounded once
//   Min, Max        NaN when any source is; the first of equals, which tells 0 from -0
//   integers        wrap around
//   Bool            Sum, Max, Bor: or. Product, Min, Band: and. Any byte but 0 is true, true is written as 1
//   complex         the product is (ac - bd) + (ad + bc)i, without care for infinities
using Kernel = void (*)(void* const* dst, int dst_count, const void* const* src, int src_count, size_t count,
                        int divisor);

// nullptr where the operation has no meaning: Avg of integers and Bool, bit operations of floating point and
// complex, Min and Max of complex. An instruction set that this CPU lacks counts as the best one it has.
Kernel find_kernel(Element element, Combine combine, Isa isa = best_isa());

// The kernels of one instruction set, for find_kernel alone: calling them on a CPU that lacks it is fatal.
namespace plain {
Kernel find(Element element, Combine combine);
}
namespace avx2 {
Kernel find(Element element, Combine combine);
}
namespace avx512 {
Kernel find(Element element, Combine combine);
}

}  // namespace lockstep::shm
