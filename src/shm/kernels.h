// Element-wise reduction: the arithmetic of the shared-memory engine.
//
// Each kernel exists once per instruction set, and all versions compute the same bits: sources are combined
// strictly in order, nothing is fused or reassociated, and a NaN in a result is always the positive quiet NaN
// of its type. (On x86, the sum of two NaNs is one of its operands; the compiler chooses which one.) This
// applies to the default floating-point environment: round to nearest.
//
// Thread-safe.
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

// Each includes the ones before it.
enum class Isa { Plain, Avx2, Avx512 };
Isa best_isa();  // of this CPU
const char* name_of(Isa isa);

// dst[k][i] = src[0][i] op src[1][i] op …, for every k < dst_count and i < count.
//
// Needs at least one source and one destination, of any alignment. A destination may be the same buffer as a
// source; otherwise they must not overlap.
//   Avg             the sum divided by `divisor`, which the other operations ignore
//   Half, BFloat16  computed in fp32 over all sources, then rounded once
//   Min, Max        NaN if any source is; of equal values the first one, which matters for 0 and -0
//   integers        wrap around
//   Bool            Sum, Max, Bor: or. Product, Min, Band: and. Any byte but 0 is true; true is written as 1
//   complex         the product is (ac - bd) + (ad + bc)i, without special cases for infinities
using Kernel = void (*)(void* const* dst, int dst_count, const void* const* src, int src_count, size_t count,
                        int divisor);

// nullptr if the operation is not defined: Avg of integers and Bool, bitwise operations on floating point and
// complex, Min and Max of complex. If this CPU lacks the instruction set, the best one that it has is used.
Kernel find_kernel(Element element, Combine combine, Isa isa = best_isa());

// The kernels of one instruction set, for find_kernel() only: on a CPU without it, they crash.
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
