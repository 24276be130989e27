// Compares the reduction kernels of every instruction set of this CPU with one reference, bit by bit. So they
// also agree with each other.
#include "shm/kernels.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

namespace lockstep::shm {
namespace {

using Bytes = std::vector<unsigned char>;

constexpr Combine kCombines[] = {Combine::Sum, Combine::Avg,  Combine::Product, Combine::Min,
                                 Combine::Max, Combine::Band, Combine::Bor,     Combine::Bxor};
constexpr size_t kSizes[] = {0, 1, 2, 7, 31, 63, 64, 65, 1000, 4097};
constexpr size_t kLargest = 4097;

std::vector<Isa> isas() {
  std::vector<Isa> found;
  for (const Isa isa : {Isa::Plain, Isa::Avx2, Isa::Avx512}) {
    if (isa <= best_isa()) found.push_back(isa);
  }
  return found;
}

// ---- The reference: one element at a time, made to be correct, not fast ----

// A 16-bit float of any format, for arithmetic in double.
template <int kExponentBits>
struct Small {
  static constexpr int kMantissaBits = 15 - kExponentBits;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kLowest = 1 - kBias;  // the exponent of the smallest normal number
  static constexpr int kExponents = (1 << kExponentBits) - 1;
  static constexpr uint16_t kNan = (kExponents << kMantissaBits) | (1 << (kMantissaBits - 1));

  uint16_t bits;

  double value() const {
    const int exponent = (bits >> kMantissaBits) & kExponents;
    const int mantissa = bits & ((1 << kMantissaBits) - 1);
    double magnitude = std::numeric_limits<double>::infinity();
    if (exponent == kExponents && mantissa != 0) return std::numeric_limits<double>::quiet_NaN();
    if (exponent == 0) magnitude = std::ldexp(mantissa, kLowest - kMantissaBits);
    if (exponent != 0 && exponent != kExponents) {
      magnitude = std::ldexp((1 << kMantissaBits) + mantissa, exponent - kBias - kMantissaBits);
    }
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
  }

  static Small nearest(double exact) {
    if (std::isnan(exact)) return {kNan};
    const uint16_t sign = std::signbit(exact) ? 0x8000 : 0;
    const double magnitude = std::fabs(exact);
    const uint16_t infinity = kExponents << kMantissaBits;
    if (magnitude == 0) return {sign};
    if (std::isinf(magnitude)) return {static_cast<uint16_t>(sign | infinity)};
    const int exponent = std::max(std::ilogb(magnitude), kLowest);
    // nearbyint rounds to even. If the mantissa overflows, the carry goes into the exponent.
    const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, kMantissaBits - exponent)));
    const int bits = ((exponent - kLowest) << kMantissaBits) + units;
    return {static_cast<uint16_t>(sign | std::min<int>(bits, infinity))};
  }
};
using Half = Small<5>;
using BFloat16 = Small<8>;
struct Truth {
  uint8_t byte;
};

template <class T>
T one_nan(T value) {
  return std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : value;
}

template <class T>
T fold_floating(Combine combine, const std::vector<T>& values, int divisor) {
  T result = values[0];
  for (size_t i = 1; i < values.size(); ++i) {
    const T next = values[i];
    switch (combine) {
      case Combine::Sum:
      case Combine::Avg:
        result = result + next;
        break;
      case Combine::Product:
        result = result * next;
        break;
      case Combine::Min:
        result = std::isnan(result) || std::isnan(next) ? result + next : std::min(result, next);
        break;
      default:
        result = std::isnan(result) || std::isnan(next) ? result + next : std::max(result, next);
        break;
    }
  }
  return one_nan(combine == Combine::Avg ? result / static_cast<T>(divisor) : result);
}
float fold(Combine combine, const std::vector<float>& values, int divisor) {
  return fold_floating(combine, values, divisor);
}
double fold(Combine combine, const std::vector<double>& values, int divisor) {
  return fold_floating(combine, values, divisor);
}

template <int kExponentBits>
Small<kExponentBits> fold(Combine combine, const std::vector<Small<kExponentBits>>& values, int divisor) {
  std::vector<float> floats;
  for (const auto& value : values) floats.push_back(static_cast<float>(value.value()));
  return Small<kExponentBits>::nearest(fold(combine, floats, divisor));
}

template <class T>
std::complex<T> fold(Combine combine, const std::vector<std::complex<T>>& values, int divisor) {
  T real = values[0].real();
  T imaginary = values[0].imag();
  for (size_t i = 1; i < values.size(); ++i) {
    const T c = values[i].real();
    const T d = values[i].imag();
    if (combine == Combine::Product) {
      // volatile prevents the compiler from fusing these operations.
      const volatile T ac = real * c, bd = imaginary * d, ad = real * d, bc = imaginary * c;
      real = ac - bd;
      imaginary = ad + bc;
    } else {
      real = real + c;
      imaginary = imaginary + d;
    }
  }
  const T by = combine == Combine::Avg ? static_cast<T>(divisor) : T(1);
  return {one_nan(real / by), one_nan(imaginary / by)};
}

Truth fold(Combine combine, const std::vector<Truth>& values, int) {
  bool result = values[0].byte != 0;
  for (size_t i = 1; i < values.size(); ++i) {
    const bool next = values[i].byte != 0;
    const bool all = combine == Combine::Product || combine == Combine::Min || combine == Combine::Band;
    result = combine == Combine::Bxor ? result != next : (all ? result && next : result || next);
  }
  return {static_cast<uint8_t>(result ? 1 : 0)};
}

template <class T>
requires std::is_integral_v<T> T fold(Combine combine, const std::vector<T>& values, int) {
  T result = values[0];
  for (size_t i = 1; i < values.size(); ++i) {
    const auto a = static_cast<uint64_t>(result);
    const auto b = static_cast<uint64_t>(values[i]);
    switch (combine) {
      case Combine::Sum:
        result = static_cast<T>(a + b);
        break;
      case Combine::Product:
        result = static_cast<T>(a * b);
        break;
      case Combine::Min:
        result = std::min(result, values[i]);
        break;
      case Combine::Max:
        result = std::max(result, values[i]);
        break;
      case Combine::Band:
        result = static_cast<T>(a & b);
        break;
      case Combine::Bor:
        result = static_cast<T>(a | b);
        break;
      default:
        result = static_cast<T>(a ^ b);
        break;
    }
  }
  return result;
}

template <class T>
Bytes expected_of(Combine combine, const std::vector<Bytes>& sources, int divisor) {
  Bytes expected(sources[0].size());
  std::vector<T> values(sources.size());
  for (size_t at = 0; at < expected.size(); at += sizeof(T)) {
    for (size_t s = 0; s < sources.size(); ++s) std::memcpy(&values[s], &sources[s][at], sizeof(T));
    const T result = fold(combine, values, divisor);
    std::memcpy(&expected[at], &result, sizeof(T));
  }
  return expected;
}

// ---- Element types ----

struct Kind {
  Element element;
  const char* name;
  size_t bytes;
  Bytes (*expected)(Combine, const std::vector<Bytes>&, int);
  const char* operations;  // those that have a meaning
};

const Kind kKinds[] = {
    {Element::Float, "Float", 4, expected_of<float>, "sum avg product min max"},
    {Element::Double, "Double", 8, expected_of<double>, "sum avg product min max"},
    {Element::Half, "Half", 2, expected_of<Half>, "sum avg product min max"},
    {Element::BFloat16, "BFloat16", 2, expected_of<BFloat16>, "sum avg product min max"},
    {Element::Int8, "Int8", 1, expected_of<int8_t>, "sum product min max band bor bxor"},
    {Element::UInt8, "UInt8", 1, expected_of<uint8_t>, "sum product min max band bor bxor"},
    {Element::Int16, "Int16", 2, expected_of<int16_t>, "sum product min max band bor bxor"},
    {Element::Int32, "Int32", 4, expected_of<int32_t>, "sum product min max band bor bxor"},
    {Element::Int64, "Int64", 8, expected_of<int64_t>, "sum product min max band bor bxor"},
    {Element::Bool, "Bool", 1, expected_of<Truth>, "sum product min max band bor bxor"},
    {Element::ComplexFloat, "ComplexFloat", 8, expected_of<std::complex<float>>, "sum avg product"},
    {Element::ComplexDouble, "ComplexDouble", 16, expected_of<std::complex<double>>, "sum avg product"},
};

const char* name_of(Combine combine) {
  const char* const names[] = {"sum", "avg", "product", "min", "max", "band", "bor", "bxor"};
  return names[static_cast<int>(combine)];
}

template <class T, class Random>
void put_floating(Bytes& bytes, Random& random) {
  using Limits = std::numeric_limits<T>;
  const T special[] = {T(0),           T(-0.0),        Limits::infinity(),     -Limits::infinity(),
                       Limits::max(),  Limits::min(),  Limits::quiet_NaN(),    -Limits::quiet_NaN(),
                       -Limits::max(), -Limits::min(), Limits::denorm_min(),   -Limits::denorm_min(),
                       T(1),           T(-1),          Limits::min() * T(0.7), Limits::signaling_NaN()};
  std::uniform_real_distribution<double> ordinary(-4, 4);
  for (size_t at = 0; at < bytes.size(); at += sizeof(T)) {
    const auto value = random() % 4 == 0 ? special[random() % 16] : static_cast<T>(ordinary(random));
    std::memcpy(&bytes[at], &value, sizeof(T));
  }
}

// 16-bit floats and integers are random bits, which contain enough NaNs, infinities and subnormal numbers.
Bytes random_bytes(const Kind& kind, size_t count, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(count * kind.bytes);
  for (auto& byte : bytes) byte = static_cast<unsigned char>(random());
  const Element element = kind.element;
  if (element == Element::Float || element == Element::ComplexFloat) put_floating<float>(bytes, random);
  if (element == Element::Double || element == Element::ComplexDouble) put_floating<double>(bytes, random);
  if (element == Element::Half || element == Element::BFloat16) {
    // Every other element is near 1, so that sums do not always overflow or vanish.
    const int one = element == Element::Half ? 0x3c00 : 0x3f80;
    for (size_t at = 0; at < bytes.size(); at += 4) {
      const auto near =
          static_cast<uint16_t>((one + static_cast<int>(random() % 4096) - 2048) ^ (random() & 0x8000));
      std::memcpy(&bytes[at], &near, 2);
    }
  }
  if (element == Element::Bool) {
    for (auto& byte : bytes) byte = byte % 3 == 0 ? 0 : byte % 3 == 1 ? 1 : byte;
  }
  return bytes;
}

// A buffer at an unaligned address, followed by bytes that must not change.
class Buffer {
 public:
  Buffer(const unsigned char* bytes, size_t size, size_t skew)
      : bytes_(skew + size + kGuard, kMark), skew_(skew) {
    std::memcpy(data(), bytes, size);
  }
  explicit Buffer(size_t size, size_t skew) : bytes_(skew + size + kGuard, kMark), skew_(skew) {}

  unsigned char* data() { return bytes_.data() + skew_; }
  bool holds(const unsigned char* expected, size_t size) {
    return std::memcmp(data(), expected, size) == 0 &&
           std::all_of(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(skew_), is_mark) &&
           std::all_of(bytes_.end() - kGuard, bytes_.end(), is_mark);
  }

 private:
  static constexpr unsigned char kMark = 0xa5;
  static constexpr std::ptrdiff_t kGuard = 64;
  static bool is_mark(unsigned char byte) { return byte == kMark; }
  Bytes bytes_;
  size_t skew_;
};

enum class Where { Elsewhere, InPlace, InPlaceFromTheEnd };

::testing::AssertionResult reduces(const Kind& kind, Kernel kernel, const std::vector<Bytes>& sources,
                                   const Bytes& expected, size_t count, int dst_count, Where where,
                                   int divisor) {
  const size_t size = count * kind.bytes;
  const auto src_count = static_cast<int>(sources.size());
  std::vector<Buffer> from;
  std::vector<Buffer> elsewhere;
  for (int s = 0; s < src_count; ++s) from.emplace_back(sources[s].data(), size, s);
  for (int d = 0; d < dst_count; ++d) elsewhere.emplace_back(size, d + 3);
  std::vector<Buffer*> to;
  for (int d = 0; d < dst_count; ++d) {
    const bool in_place = where != Where::Elsewhere && d < src_count;
    const int own = where == Where::InPlace ? d : src_count - 1 - d;
    to.push_back(in_place ? &from[own] : &elsewhere[d]);
  }
  std::vector<const void*> src;
  std::vector<void*> dst;
  for (auto& buffer : from) src.push_back(buffer.data());
  for (auto* buffer : to) dst.push_back(buffer->data());

  kernel(dst.data(), dst_count, src.data(), src_count, count, divisor);

  for (int d = 0; d < dst_count; ++d) {
    if (to[d]->holds(expected.data(), size)) continue;
    size_t at = 0;
    while (at < size && to[d]->data()[at] == expected[at]) ++at;
    return ::testing::AssertionFailure()
           << "destination " << d << " differs at element " << at / kind.bytes << " of " << count
           << " (sources " << src_count << ", destinations " << dst_count << ", place "
           << static_cast<int>(where) << ", divisor " << divisor << ")";
  }
  for (auto& buffer : from) {
    const auto source = static_cast<size_t>(&buffer - from.data());
    const bool written = std::find(to.begin(), to.end(), &buffer) != to.end();
    if (!written && !buffer.holds(sources[source].data(), size)) {
      return ::testing::AssertionFailure() << "source " << source << " was written to";
    }
  }
  return ::testing::AssertionSuccess();
}

// ---- Tests ----

class Kernels : public ::testing::TestWithParam<Kind> {};

TEST_P(Kernels, ExistWhereTheOperationHasAMeaning) {
  const Kind& kind = GetParam();
  EXPECT_EQ(size_of(kind.element), kind.bytes);
  const std::string meaningful = " " + std::string(kind.operations) + " ";
  for (const Isa isa : isas()) {
    for (const Combine combine : kCombines) {
      const bool expected = meaningful.find(" " + std::string(name_of(combine)) + " ") != std::string::npos;
      EXPECT_EQ(find_kernel(kind.element, combine, isa) != nullptr, expected)
          << name_of(combine) << ", " << shm::name_of(isa);
    }
  }
}

TEST_P(Kernels, GiveTheBitsOfTheReference) {
  const Kind& kind = GetParam();
  for (const Combine combine : kCombines) {
    if (find_kernel(kind.element, combine) == nullptr) continue;
    for (const int src_count : {1, 2, 3, 7}) {
      std::vector<Bytes> sources;
      for (int s = 0; s < src_count; ++s) sources.push_back(random_bytes(kind, kLargest, 17 * src_count + s));
      // 0 if the divisor is ignored. Powers of two use different code than other divisors.
      const auto divisors = combine == Combine::Avg ? std::vector<int>{1, 2, 3, 7} : std::vector<int>{0};
      for (const int divisor : divisors) {
        const Bytes expected = kind.expected(combine, sources, divisor);
        for (const Isa isa : isas()) {
          SCOPED_TRACE(std::string(name_of(combine)) + ", " + shm::name_of(isa));
          const Kernel kernel = find_kernel(kind.element, combine, isa);
          for (const size_t count : kSizes) {
            for (const int dst_count : {1, 2, 3}) {
              for (const Where where : {Where::Elsewhere, Where::InPlace, Where::InPlaceFromTheEnd}) {
                ASSERT_TRUE(reduces(kind, kernel, sources, expected, count, dst_count, where, divisor));
              }
            }
          }
        }
      }
    }
  }
}

std::string name_of_kind(const ::testing::TestParamInfo<Kind>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Every, Kernels, ::testing::ValuesIn(kKinds), name_of_kind);

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

class SmallFloats : public ::testing::TestWithParam<Kind> {
 protected:
  // All 65536 values of the format.
  static Bytes everything() {
    Bytes bytes(2 * 65536);
    for (uint32_t i = 0; i < 65536; ++i) {
      const auto pattern = static_cast<uint16_t>(i);
      std::memcpy(&bytes[2 * i], &pattern, 2);
    }
    return bytes;
  }
};

TEST_P(SmallFloats, EveryNumberComesBackAsItself) {
  const Kind& kind = GetParam();
  const bool half = kind.element == Element::Half;
  const int infinity = half ? 0x7c00 : 0x7f80;
  const int nan = half ? 0x7e00 : 0x7fc0;
  Bytes expected = everything();
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto pattern = static_cast<uint16_t>(static_cast<int>(i & 0x7fff) > infinity ? nan : i);
    std::memcpy(&expected[2 * i], &pattern, 2);
  }
  for (const Isa isa : isas()) {
    for (const Combine combine : {Combine::Sum, Combine::Product, Combine::Min, Combine::Max}) {
      const Kernel kernel = find_kernel(kind.element, combine, isa);
      EXPECT_TRUE(reduces(kind, kernel, {everything()}, expected, 65536, 1, Where::Elsewhere, 0))
          << name_of(combine) << ", " << shm::name_of(isa);
    }
  }
}

// Division gives subnormal numbers, ties, and numbers below the smallest. Sums with a constant cover all
// differences of exponents. Doubling overflows.
TEST_P(SmallFloats, EveryNumberIsRoundedToNearestEven) {
  const Kind& kind = GetParam();
  for (const int divisor : {2, 3, 1 << 10, 3 << 10, 1 << 24}) {
    const Bytes expected = kind.expected(Combine::Avg, {everything()}, divisor);
    for (const Isa isa : isas()) {
      const Kernel kernel = find_kernel(kind.element, Combine::Avg, isa);
      EXPECT_TRUE(reduces(kind, kernel, {everything()}, expected, 65536, 1, Where::Elsewhere, divisor))
          << shm::name_of(isa);
    }
  }
  for (const int constant :
       {0x0001, 0x0400, 0x3c01, 0x3f81, 0x7bff, 0x7f7f, 0x7c01, 0xfc00, 0xff80, 0xbc00}) {
    Bytes other(2 * 65536);
    for (size_t at = 0; at < other.size(); at += 2) std::memcpy(&other[at], &constant, 2);
    for (const Combine combine : {Combine::Sum, Combine::Product}) {
      const Bytes expected = kind.expected(combine, {everything(), other}, 0);
      for (const Isa isa : isas()) {
        const Kernel kernel = find_kernel(kind.element, combine, isa);
        EXPECT_TRUE(reduces(kind, kernel, {everything(), other}, expected, 65536, 2, Where::InPlace, 0))
            << name_of(combine) << " with " << constant << ", " << shm::name_of(isa);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, SmallFloats, ::testing::Values(kKinds[2], kKinds[3]), name_of_kind);

// 2048 + 1 + 1 in half precision: rounding after each step would lose both.
TEST(Rounding, HappensOnceForAllSources) {
  const uint16_t sources[] = {0x6800, 0x3c00, 0x3c00};
  for (const Isa isa : isas()) {
    uint16_t result = 0;
    void* const dst[] = {&result};
    const void* const src[] = {&sources[0], &sources[1], &sources[2]};
    find_kernel(Element::Half, Combine::Sum, isa)(dst, 1, src, 3, 1, 0);
    EXPECT_EQ(result, 0x6801) << shm::name_of(isa);
  }
}

TEST(Order, IsThatOfTheSources) {
  const float sources[] = {1e8f, 3.0f, -1e8f, 3.0f};
  for (const Isa isa : isas()) {
    float result = 0;
    void* const dst[] = {&result};
    const void* const src[] = {&sources[0], &sources[1], &sources[2], &sources[3]};
    find_kernel(Element::Float, Combine::Sum, isa)(dst, 1, src, 4, 1, 0);
    EXPECT_EQ(result, 3.0f) << shm::name_of(isa);
  }
}

TEST(BestIsa, HasAName) {
  EXPECT_STREQ(shm::name_of(Isa::Plain), "plain");
  EXPECT_STREQ(shm::name_of(Isa::Avx2), "AVX2");
  EXPECT_STREQ(shm::name_of(Isa::Avx512), "AVX-512");
  EXPECT_EQ(find_kernel(Element::Float, Combine::Sum), find_kernel(Element::Float, Combine::Sum, best_isa()));
}

}  // namespace
}  // namespace lockstep::shm
