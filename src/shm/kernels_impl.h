// The kernels, for the instruction set of the file that includes this: kernels_baseline.cc, kernels_avx2.cc
// or kernels_avx512.cc, which say into which namespace they go and how many bytes a vector register has.
//
// The trap: a function that is compiled here for AVX and has external linkage (a template or an inline
// function of std, say) may be the copy that the linker keeps for the whole program, which then crashes CPUs
// without AVX. So everything here but find() has internal linkage, and no function of std is called.
//
// A kernel walks through its buffers register by register and keeps the accumulators of a piece in registers,
// from the first source to the last destination: nothing is stored before everything has been loaded, which
// makes it right to work in place. What it must know of an element type is a lane:
//   Packed            a register of elements as they lie in memory
//   Scalar, kParts    what they are computed as, in so many registers
//   widen(), narrow() from the one to the other and back

#include <utility>

#include "shm/kernels.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace lockstep::shm::LOCKSTEP_KERNELS_NAMESPACE {

namespace {

constexpr size_t kRegisterBytes = LOCKSTEP_KERNELS_WIDTH;

// The compiler's own vectors: arithmetic, comparison and ?: work on all lanes.
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

// The same bits as other lanes.
template <class To, class From>
To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return reinterpret_cast<To>(from);
}

// ---- Lanes: elements in memory and in registers ----

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

template <class T>
Vector<T> with_one_nan(Vector<T> value) {
  return value == value ? value : Vector<T>{} + static_cast<T>(__builtin_nan(""));
}

template <class T>
struct Floating : Integer<T> {
  static Vector<T> narrow(Parts<T, 1> value) { return with_one_nan<T>(value.part[0]); }
};

// Pairs of elements, as 32-bit words. The lower ones and the upper ones become a vector of floats each, so
// that nothing ever crosses a lane.
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

// To nearest even. A carry out of the mantissa makes the next exponent, and infinity after the last one; it
// never comes out of the one NaN, whose lower half is empty.
#if defined(__AVX512BW__)
// Masks make the choice between two values free, and three bit operations are one.
BFloat16::Packed BFloat16::narrow(Parts<float, 2> value) {
  Words rounded[2];
  for (int i = 0; i < 2; ++i) {
    const auto word = bits<Words>(value.part[i]);
    const Words even = ~(word >> 16) & 1;
    const Words up = word - (even | 0xffff8000);  // word + 0x7fff, one more when odd
    rounded[i] = value.part[i] == value.part[i] ? up : Words{} + 0x7fc00000;
  }
  return (rounded[0] >> 16) | (rounded[1] & kUpper);
}
#else
// Of all elements at once, after the halves of the floats have been sorted: those to keep and those to lose.
BFloat16::Packed BFloat16::narrow(Parts<float, 2> value) {
  using Shorts = Vector<uint16_t>;
#if defined(__AVX2__)
  const bool nan =
      _mm256_movemask_ps(_mm256_cmp_ps(__m256(value.part[0]), __m256(value.part[1]), _CMP_UNORD_Q)) != 0;
#elif defined(__SSE2__)
  const bool nan = _mm_movemask_ps(_mm_cmpunord_ps(__m128(value.part[0]), __m128(value.part[1]))) != 0;
#else
  const bool nan = true;  // as far as one knows
#endif
  if (nan) [[unlikely]] {
    for (auto& part : value.part) part = with_one_nan<float>(part);
  }
  const auto lower = bits<Words>(value.part[0]);
  const auto upper = bits<Words>(value.part[1]);
#if defined(__AVX2__)
  const auto keep = bits<Shorts>(_mm256_blend_epi16(__m256i(lower >> 16), __m256i(upper), 0xaa));
  const auto lose = bits<Shorts>(_mm256_blend_epi16(__m256i(lower), __m256i(upper << 16), 0xaa));
#else
  const auto keep = bits<Shorts>((lower >> 16) | (upper & kUpper));
  const auto lose = bits<Shorts>((lower & ~kUpper) | (upper << 16));
#endif
  // Up when more than one half (0x8000) is lost. A last bit to keep that is odd makes exactly one half more.
  // "More than 0x8000" is "positive" for the negated, as SSE2 compares signed numbers only.
  const auto up = bits<Vector<int16_t>>(-(lose | (keep & 1))) > 0;
  return bits<Words>(keep - bits<Shorts>(up));
}
#endif

#if defined(__AVX512F__)
struct Half {
  using Packed = __m256i;
  using Scalar = float;
  static constexpr int kParts = 1;
  // The masked forms, as GCC 12 warns of its own header in the others.
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
  // Signed, as SSE2 compares nothing else; magnitudes never reach the sign.
  using Ints = Vector<int32_t>;
  static constexpr int32_t kRebias = (127 - 15) << 23;        // between the exponents of half and float
  static constexpr int32_t kSmallest = kRebias + (1 << 23);   // 2^-14, the smallest normal half, as float
  static constexpr int32_t kTooLarge = kRebias + (31 << 23);  // 2^16, as float
  static constexpr int32_t kInfinity = 0x7c00;

  static Floats to_floats(Words half) {
    const auto magnitude = bits<Ints>((half & 0x7fff) << 13);
    const Ints normal = magnitude + kRebias;
    // What has no hidden one gets it and then loses its value again.
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
    // From 0.5 to 1 the last bit of a float is worth 2^-24, as that of a subnormal half: the addition rounds.
    const Floats half = Floats{} + 0.5f;
    const Ints subnormal = bits<Ints>(bits<Floats>(magnitude) + half) - bits<Ints>(half);
    const Ints finite = magnitude < kSmallest ? subnormal : normal;
    const Ints limited = magnitude < kTooLarge ? finite : Ints{} + kInfinity;
    return value == value ? bits<Words>(limited) | ((word >> 16) & 0x8000) : Words{} + 0x7e00;
  }
};
#endif

// ---- Operations ----

struct Sum {
  static auto apply(auto a, auto b) { return a + b; }
};
struct Product {
  static auto apply(auto a, auto b) { return a * b; }
};
// Nothing is less or greater than a NaN: one in `a` stays, one in `b` must be asked for.
struct Min {
  static auto apply(auto a, auto b) { return ((b < a) | (b != b)) ? b : a; }
};
struct Max {
  static auto apply(auto a, auto b) { return ((b > a) | (b != b)) ? b : a; }
};
struct And {
  static auto apply(auto a, auto b) { return a & b; }
};
struct Or {
  static auto apply(auto a, auto b) { return a | b; }
};
struct Xor {
  static auto apply(auto a, auto b) { return a ^ b; }
};
// Real and imaginary parts take turns. The sign is a factor since GCC 12, where it sees that differences and
// sums of products take turns, fuses them, whatever -ffp-contract says.
struct ComplexProduct {
  template <class V>
  static V apply(V a, V b) {
    return apply(a, b, std::make_index_sequence<sizeof(V) / sizeof(a[0])>());
  }

 private:
  template <class V, size_t... kLane>
  static V apply(V a, V b, std::index_sequence<kLane...>) {
    const V real = __builtin_shufflevector(a, a, (kLane & ~size_t{1})...);
    const V imaginary = __builtin_shufflevector(a, a, (kLane | 1)...);
    const V crossed = __builtin_shufflevector(b, b, (kLane ^ 1)...);
    const V sign = {(kLane % 2 == 0 ? -1 : 1)...};
    return real * b + sign * (imaginary * crossed);
  }
};

// What is done to the combined value at last.
template <class T>
struct Keep {
  explicit Keep(int) {}
  Vector<T> operator()(Vector<T> value) const { return value; }
};
// Exact, and so the same as division, for powers of two.
template <class T>
struct Multiply {
  explicit Multiply(int divisor) : factor(T(1) / static_cast<T>(divisor)) {}
  Vector<T> operator()(Vector<T> value) const { return value * factor; }
  T factor;
};
template <class T>
struct Divide {
  explicit Divide(int by) : divisor(static_cast<T>(by)) {}
  Vector<T> operator()(Vector<T> value) const { return value / divisor; }
  T divisor;
};

// ---- The walk ----

struct Buffers {
  void* const* dst;
  int dst_count;
  const void* const* src;
  int src_count;
};

// Of any type and at any address. (A memcpy of 16 bytes would go through integer registers.)
template <class Packed>
struct InMemory {
  typedef Packed Type __attribute__((aligned(1), may_alias));
};

// Less than a register. By way of memory, the processor would wait for the small stores before the large
// load.
template <class Packed>
Packed load_some(const char* from, size_t bytes) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  const auto mask = ~uint64_t{0} >> (64 - bytes);
  if constexpr (sizeof(Packed) == 64) {
    return reinterpret_cast<Packed>(_mm512_maskz_loadu_epi8(mask, from));
  } else if constexpr (sizeof(Packed) == 32) {
    return reinterpret_cast<Packed>(_mm256_maskz_loadu_epi8(static_cast<__mmask32>(mask), from));
  } else if constexpr (sizeof(Packed) == 16) {
    return reinterpret_cast<Packed>(_mm_maskz_loadu_epi8(static_cast<__mmask16>(mask), from));
  }
#endif
  Packed packed{};
  __builtin_memcpy(&packed, from, bytes);
  return packed;
}
template <class Packed>
void store_some(char* to, size_t bytes, Packed packed) {
  __builtin_memcpy(to, &packed, bytes);
}

// `bytes` may be less than a register; the rest counts as zeros.
template <class Packed>
Packed load(const void* from, size_t at, size_t bytes) {
  const char* const begin = static_cast<const char*>(from) + at;
  if (bytes == sizeof(Packed)) return *reinterpret_cast<const typename InMemory<Packed>::Type*>(begin);
  return load_some<Packed>(begin, bytes);
}
template <class Packed>
void store(void* to, size_t at, size_t bytes, Packed packed) {
  char* const begin = static_cast<char*>(to) + at;
  if (bytes == sizeof(Packed)) {
    *reinterpret_cast<typename InMemory<Packed>::Type*>(begin) = packed;
  } else {
    store_some(begin, bytes, packed);
  }
}

// Reduces kUnroll registers of every buffer, or `bytes` of one.
template <class Lane, class Op, int kUnroll, class Finish>
void reduce_piece(const Buffers& buffers, size_t at, size_t bytes, Finish finish) {
  using Packed = typename Lane::Packed;
  Parts<typename Lane::Scalar, Lane::kParts> value[kUnroll];
#pragma GCC unroll 4
  for (int u = 0; u < kUnroll; ++u) {
    value[u] = Lane::widen(load<Packed>(buffers.src[0], at + u * sizeof(Packed), bytes));
  }
  for (int s = 1; s < buffers.src_count; ++s) {
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; ++u) {
      const auto next = Lane::widen(load<Packed>(buffers.src[s], at + u * sizeof(Packed), bytes));
      for (int p = 0; p < Lane::kParts; ++p) {
        value[u].part[p] = Op::apply(value[u].part[p], next.part[p]);
      }
    }
  }
  Packed result[kUnroll];
#pragma GCC unroll 4
  for (int u = 0; u < kUnroll; ++u) {
    for (auto& part : value[u].part) part = finish(part);
    result[u] = Lane::narrow(value[u]);
  }
  for (int d = 0; d < buffers.dst_count; ++d) {
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; ++u) store(buffers.dst[d], at + u * sizeof(Packed), bytes, result[u]);
  }
}

// From `at` on, in whole pieces; returns where it stopped.
template <class Lane, class Op, int kUnroll, class Finish>
size_t reduce_pieces(const Buffers& buffers, size_t at, size_t bytes, Finish finish) {
  constexpr size_t kPiece = kUnroll * sizeof(typename Lane::Packed);
  for (; bytes - at >= kPiece; at += kPiece) {
    reduce_piece<Lane, Op, kUnroll>(buffers, at, sizeof(typename Lane::Packed), finish);
  }
  return at;
}

// kHot: also made for two sources and one or two destinations in particular.
template <class Lane, class Op, template <class> class Finish, size_t kElementBytes, bool kHot = false>
[[gnu::flatten]] void reduce(void* const* dst, int dst_count, const void* const* src, int src_count,
                             size_t count, int divisor) {
  constexpr int kUnroll = 2;
  const Finish<typename Lane::Scalar> finish(divisor);
  const Buffers buffers{dst, dst_count, src, src_count};
  const size_t bytes = count * kElementBytes;
  size_t at = 0;
  if constexpr (kHot) {
    if (src_count == 2 && dst_count <= 2) {
      // Counts and pointers that nothing else can see stay in registers.
      const void* const from[] = {src[0], src[1]};
      void* const to[] = {dst[0], dst[dst_count - 1]};
      at = dst_count == 1 ? reduce_pieces<Lane, Op, kUnroll>({to, 1, from, 2}, at, bytes, finish)
                          : reduce_pieces<Lane, Op, kUnroll>({to, 2, from, 2}, at, bytes, finish);
    }
  }
  at = reduce_pieces<Lane, Op, kUnroll>(buffers, at, bytes, finish);
  at = reduce_pieces<Lane, Op, 1>(buffers, at, bytes, finish);
  if (at < bytes) reduce_piece<Lane, Op, 1>(buffers, at, bytes - at, finish);
}

template <class Lane, size_t kElementBytes>
void average(void* const* dst, int dst_count, const void* const* src, int src_count, size_t count,
             int divisor) {
  const bool power_of_two = (divisor & (divisor - 1)) == 0;
  const Kernel kernel = power_of_two ? reduce<Lane, Sum, Multiply, kElementBytes, true>
                                     : reduce<Lane, Sum, Divide, kElementBytes, true>;
  kernel(dst, dst_count, src, src_count, count, divisor);
}

// ---- The table ----

template <class Lane, size_t kElementBytes>
Kernel find_floating(Combine combine) {
  switch (combine) {
    case Combine::Sum:
      return reduce<Lane, Sum, Keep, kElementBytes, true>;
    case Combine::Avg:
      return average<Lane, kElementBytes>;
    case Combine::Product:
      return reduce<Lane, Product, Keep, kElementBytes>;
    case Combine::Min:
      return reduce<Lane, Min, Keep, kElementBytes>;
    case Combine::Max:
      return reduce<Lane, Max, Keep, kElementBytes>;
    default:
      return nullptr;
  }
}

// A complex number is two of T to everything but the product.
template <class T>
Kernel find_complex(Combine combine) {
  switch (combine) {
    case Combine::Sum:
      return reduce<Floating<T>, Sum, Keep, 2 * sizeof(T), true>;
    case Combine::Avg:
      return average<Floating<T>, 2 * sizeof(T)>;
    case Combine::Product:
      return reduce<Floating<T>, ComplexProduct, Keep, 2 * sizeof(T)>;
    default:
      return nullptr;
  }
}

// Only order depends on the sign. The rest is done unsigned, where overflow wraps around.
template <class T, class Unsigned>
Kernel find_integer(Combine combine) {
  using Lane = Integer<Unsigned>;
  switch (combine) {
    case Combine::Sum:
      return reduce<Lane, Sum, Keep, sizeof(T)>;
    case Combine::Product:
      return reduce<Lane, Product, Keep, sizeof(T)>;
    case Combine::Min:
      return reduce<Integer<T>, Min, Keep, sizeof(T)>;
    case Combine::Max:
      return reduce<Integer<T>, Max, Keep, sizeof(T)>;
    case Combine::Band:
      return reduce<Lane, And, Keep, sizeof(T)>;
    case Combine::Bor:
      return reduce<Lane, Or, Keep, sizeof(T)>;
    case Combine::Bxor:
      return reduce<Lane, Xor, Keep, sizeof(T)>;
    default:
      return nullptr;
  }
}

Kernel find_bool(Combine combine) {
  switch (combine) {
    case Combine::Sum:
    case Combine::Max:
    case Combine::Bor:
      return reduce<Bool, Or, Keep, 1>;
    case Combine::Product:
    case Combine::Min:
    case Combine::Band:
      return reduce<Bool, And, Keep, 1>;
    case Combine::Bxor:
      return reduce<Bool, Xor, Keep, 1>;
    default:
      return nullptr;
  }
}

}  // namespace

Kernel find(Element element, Combine combine) {
  switch (element) {
    case Element::Float:
      return find_floating<Floating<float>, 4>(combine);
    case Element::Double:
      return find_floating<Floating<double>, 8>(combine);
    case Element::Half:
      return find_floating<Half, 2>(combine);
    case Element::BFloat16:
      return find_floating<BFloat16, 2>(combine);
    case Element::Int8:
      return find_integer<int8_t, uint8_t>(combine);
    case Element::UInt8:
      return find_integer<uint8_t, uint8_t>(combine);
    case Element::Int16:
      return find_integer<int16_t, uint16_t>(combine);
    case Element::Int32:
      return find_integer<int32_t, uint32_t>(combine);
    case Element::Int64:
      return find_integer<int64_t, uint64_t>(combine);
    case Element::Bool:
      return find_bool(combine);
    case Element::ComplexFloat:
      return find_complex<float>(combine);
    case Element::ComplexDouble:
      return find_complex<double>(combine);
  }
  return nullptr;
}

}  // namespace lockstep::shm::LOCKSTEP_KERNELS_NAMESPACE
