// Vectors and lanes of the kernels (kernels_impl.h): how the elements of each type are stored in memory, and
// how they are computed in registers. Compiled once for each instruction set; the warning about linkage in
// kernels_impl.h applies here, too.
//
// A lane describes an element type:
//   Packed            one register of elements, as stored in memory
//   Scalar, kParts    the type in which they are computed, and the number of registers that this needs
//   widen(), narrow() convert from Packed to these registers and back
// Complex numbers have no lane of their own: they are pairs of Floating elements.

#include "shm/kernels.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace lockstep::shm::LOCKSTEP_KERNELS_NAMESPACE {

namespace {

constexpr size_t kRegisterBytes = LOCKSTEP_KERNELS_WIDTH;

// The compiler's vector types: arithmetic, comparison and ?: are element-wise.
template <class T>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kRegisterBytes)));
};
template <class T>
using Vector = typename VectorOf<T>::Type;

using Floats = Vector<float>;
using Words = Vector<uint32_t>;

template <class T, int kCount>
struct Parts {
  Vector<T> part[kCount];
};

// The same bits, read as a vector of another type.
template <class To, class From>
To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return reinterpret_cast<To>(from);
}

template <class T>
struct Integer {
  using Packed = Vector<T>;
  using Scalar = T;
  static constexpr int kParts = 1;
  static Parts<T, 1> widen(Packed packed) { return {{packed}}; }
  static Packed narrow(Parts<T, 1> value) { return value.part[0]; }
};

struct Bool : Integer<uint8_t> {
  static Parts<uint8_t, 1> widen(Packed packed) { return {{bits<Packed>(packed != 0) & 1}}; }
};

// Replaces each NaN by the same one, so that the bits of a result do not depend on the instruction set.
template <class T>
Vector<T> with_one_nan(Vector<T> value) {
  return value == value ? value : Vector<T>{} + static_cast<T>(__builtin_nan(""));
}

template <class T>
struct Floating : Integer<T> {
  static Vector<T> narrow(Parts<T, 1> value) { return with_one_nan<T>(value.part[0]); }
};

// Pairs of elements, as 32-bit words. The lower halves become one vector of floats and the upper halves
// another, so no data crosses vector lanes.
struct BFloat16 {
  using Packed = Words;
  using Scalar = float;
  static constexpr int kParts = 2;

  static Parts<float, 2> widen(Packed packed) {
    return {{bits<Floats>(packed << 16), bits<Floats>(packed & kUpper)}};
  }
  static Packed narrow(Parts<float, 2> value);

 private:
  static constexpr uint32_t kUpper = 0xffff0000;
};

// Rounds to nearest even. A carry out of the mantissa increments the exponent, and the largest exponent
// becomes infinity. The NaN of with_one_nan() causes no carry, because its lower half is zero.
#if defined(__AVX512BW__)
// With mask registers, selecting one of two values costs nothing, and three bit operations are one
// instruction.
BFloat16::Packed BFloat16::narrow(Parts<float, 2> value) {
  Words rounded[2];
  for (int i = 0; i < 2; ++i) {
    const auto word = bits<Words>(value.part[i]);
    const Words even = ~(word >> 16) & 1;
    const Words up = word - (even | 0xffff8000);  // word + 0x7fff, plus 1 if odd
    rounded[i] = value.part[i] == value.part[i] ? up : Words{} + 0x7fc00000;
  }
  return (rounded[0] >> 16) | (rounded[1] & kUpper);
}
#else
// Rounds all elements at once. First, the upper halves of the floats (`kept`) and the lower ones (`dropped`)
// are collected in one vector each.
BFloat16::Packed BFloat16::narrow(Parts<float, 2> value) {
  using Shorts = Vector<uint16_t>;
#if defined(__AVX2__)
  const bool nan =
      _mm256_movemask_ps(_mm256_cmp_ps(__m256(value.part[0]), __m256(value.part[1]), _CMP_UNORD_Q)) != 0;
#elif defined(__SSE2__)
  const bool nan = _mm_movemask_ps(_mm_cmpunord_ps(__m128(value.part[0]), __m128(value.part[1]))) != 0;
#else
  const bool nan = true;  // unknown: there may be one
#endif
  if (nan) [[unlikely]] {
    for (auto& part : value.part) part = with_one_nan<float>(part);
  }
  const auto lower = bits<Words>(value.part[0]);
  const auto upper = bits<Words>(value.part[1]);
#if defined(__AVX2__)
  const auto kept = bits<Shorts>(_mm256_blend_epi16(__m256i(lower >> 16), __m256i(upper), 0xaa));
  const auto dropped = bits<Shorts>(_mm256_blend_epi16(__m256i(lower), __m256i(upper << 16), 0xaa));
#else
  const auto kept = bits<Shorts>((lower >> 16) | (upper & kUpper));
  const auto dropped = bits<Shorts>((lower & ~kUpper) | (upper << 16));
#endif
  // Rounds up if more than one half (0x8000) is dropped. If the last kept bit is odd, `kept & 1` lifts a tie
  // above one half. SSE2 compares signed numbers only: a value is more than 0x8000 if its negation is
  // positive.
  const auto up = bits<Vector<int16_t>>(-(dropped | (kept & 1))) > 0;
  return bits<Words>(kept - bits<Shorts>(up));
}
#endif

#if defined(__AVX512F__)
struct Half {
  using Packed = __m256i;
  using Scalar = float;
  static constexpr int kParts = 1;
  // The masked forms, because GCC 12 warns about its own header in the others.
  static Parts<float, 1> widen(Packed packed) { return {{Floats(_mm512_maskz_cvtph_ps(0xffff, packed))}}; }
  static Packed narrow(Parts<float, 1> value) {
    return _mm512_maskz_cvtps_ph(0xffff, __m512(with_one_nan<float>(value.part[0])),
                                 _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
};
#elif defined(__F16C__)
struct Half {
  using Packed = __m128i;
  using Scalar = float;
  static constexpr int kParts = 1;
  static Parts<float, 1> widen(Packed packed) { return {{Floats(_mm256_cvtph_ps(packed))}}; }
  static Packed narrow(Parts<float, 1> value) {
    return _mm256_cvtps_ph(__m256(with_one_nan<float>(value.part[0])),
                           _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
};
#else
struct Half {
  using Packed = Words;
  using Scalar = float;
  static constexpr int kParts = 2;

  static Parts<float, 2> widen(Packed packed) {
    return {{to_floats(packed & 0xffff), to_floats(packed >> 16)}};
  }
  static Packed narrow(Parts<float, 2> value) {
    return from_floats(value.part[0]) | (from_floats(value.part[1]) << 16);
  }

 private:
  // Signed, because SSE2 compares signed numbers only. Magnitudes never use the sign bit.
  using Ints = Vector<int32_t>;
  static constexpr int32_t kRebias = (127 - 15) << 23;        // exponent bias of float minus that of half
  static constexpr int32_t kSmallest = kRebias + (1 << 23);   // 2^-14, the smallest normal half, as float
  static constexpr int32_t kTooLarge = kRebias + (31 << 23);  // 2^16, as float
  static constexpr int32_t kInfinity = 0x7c00;

  static Floats to_floats(Words half) {
    const auto magnitude = bits<Ints>((half & 0x7fff) << 13);
    const Ints normal = magnitude + kRebias;
    // A subnormal has no implicit leading one: add one, then subtract its value.
    const Ints smallest = Ints{} + kSmallest;
    const auto subnormal = bits<Ints>(bits<Floats>(magnitude + smallest) - bits<Floats>(smallest));
    const Ints finite = magnitude < (1 << 23) ? subnormal : normal;
    const Ints value = magnitude < (kInfinity << 13) ? finite : normal + kRebias;
    return bits<Floats>(bits<Words>(value) | ((half & 0x8000) << 16));
  }

  static Words from_floats(Floats value) {
    const auto word = bits<Words>(value);
    const auto magnitude = bits<Ints>(word & 0x7fffffff);
    const Ints odd = (magnitude >> 13) & 1;
    const Ints normal = (magnitude - kRebias + 0xfff + odd) >> 13;
    // Between 0.5 and 1, the last bit of a float is worth 2^-24, as in a subnormal half. So the addition
    // rounds.
    const Floats half = Floats{} + 0.5f;
    const Ints subnormal = bits<Ints>(bits<Floats>(magnitude) + half) - bits<Ints>(half);
    const Ints finite = magnitude < kSmallest ? subnormal : normal;
    const Ints limited = magnitude < kTooLarge ? finite : Ints{} + kInfinity;
    return value == value ? bits<Words>(limited) | ((word >> 16) & 0x8000) : Words{} + 0x7e00;
  }
};
#endif

}  // namespace

}  // namespace lockstep::shm::LOCKSTEP_KERNELS_NAMESPACE
