// The kernels: operations, the loop over the buffers, and the table for find(). The file that includes this
// header (kernels_baseline.cc, kernels_avx2.cc or kernels_avx512.cc) is compiled for one instruction set; it
// defines the namespace of the kernels and the number of bytes in a vector register. kernel_lanes.h has the
// element types.
//
// Warning about linkage: a function that is compiled here for AVX and has external linkage (for example a
// template or an inline function of std) may be the copy that the linker keeps for the whole program. The
// program would then crash on CPUs without AVX. So everything except find() has internal linkage, and no
// function of std is called.
//
// A kernel processes its buffers register by register. The accumulators of a piece stay in registers from the
// first source to the last destination. Nothing is stored before everything has been loaded, so a destination
// may be one of the sources.

#include <utility>

#include "shm/kernel_lanes.h"
#include "shm/kernels.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace lockstep::shm::LOCKSTEP_KERNELS_NAMESPACE {

namespace {

// ---- Operations ----

struct Sum {
  static auto apply(auto a, auto b) { return a + b; }
};
struct Product {
  static auto apply(auto a, auto b) { return a * b; }
};
// No comparison with a NaN is true: a NaN in `a` stays without a test, one in `b` needs a test of its own.
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
// Real and imaginary parts alternate. The sign is a factor because GCC 12 fuses alternating differences and
// sums of products, regardless of -ffp-contract.
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

// The last step, applied to the combined value.
template <class T>
struct Keep {
  explicit Keep(int) {}
  Vector<T> operator()(Vector<T> value) const { return value; }
};
// For powers of two: exact, so the result is the same as with division.
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

// ---- The loops ----

struct Buffers {
  void* const* dst;
  int dst_count;
  const void* const* src;
  int src_count;
};

// For access to any type at any address. (A memcpy of 16 bytes would use integer registers.)
template <class Packed>
struct InMemory {
  typedef Packed Type __attribute__((aligned(1), may_alias));
};

// Less than a register. Masked loads avoid a detour through memory, where the large load would have to wait
// for the small stores before it.
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

// `bytes` may be less than a register; the remaining bytes are zeros.
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

// Reduces kUnroll registers of each buffer or, with kUnroll = 1, the first `bytes` of a register.
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

// Reduces whole pieces, starting at `at`; returns where it stopped.
template <class Lane, class Op, int kUnroll, class Finish>
size_t reduce_pieces(const Buffers& buffers, size_t at, size_t bytes, Finish finish) {
  constexpr size_t kPiece = kUnroll * sizeof(typename Lane::Packed);
  for (; bytes - at >= kPiece; at += kPiece) {
    reduce_piece<Lane, Op, kUnroll>(buffers, at, sizeof(typename Lane::Packed), finish);
  }
  return at;
}

// kHot: with a separate loop for two sources and one or two destinations.
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
      // Constant counts and local copies of the pointers stay in registers.
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

// Except for the product, a complex number is two independent elements of type T.
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

// Only min and max depend on the sign. All else is computed unsigned, where overflow wraps around.
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
