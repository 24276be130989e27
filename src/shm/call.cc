#include "shm/call.h"

#include <fmt/format.h>
#include <optional>

#include <lockstep/error.h>

#include "base/error_text.h"

namespace lockstep::shm {

namespace {

static_assert(static_cast<int>(ReduceOp::Sum) == static_cast<int>(Combine::Sum) &&
              static_cast<int>(ReduceOp::Bxor) == static_cast<int>(Combine::Bxor));

std::optional<Element> element_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return Element::Float;
    case c10::ScalarType::Double:
      return Element::Double;
    case c10::ScalarType::Half:
      return Element::Half;
    case c10::ScalarType::BFloat16:
      return Element::BFloat16;
    case c10::ScalarType::Char:
      return Element::Int8;
    case c10::ScalarType::Byte:
      return Element::UInt8;
    case c10::ScalarType::Short:
      return Element::Int16;
    case c10::ScalarType::Int:
      return Element::Int32;
    case c10::ScalarType::Long:
      return Element::Int64;
    case c10::ScalarType::Bool:
      return Element::Bool;
    case c10::ScalarType::ComplexFloat:
      return Element::ComplexFloat;
    case c10::ScalarType::ComplexDouble:
      return Element::ComplexDouble;
    default:
      return std::nullopt;
  }
}

}  // namespace

Kernel kernel_for(c10::ScalarType dtype, ReduceOp op) {
  const auto element = element_of(dtype);
  if (const auto kernel = element ? find_kernel(*element, static_cast<Combine>(op)) : nullptr) return kernel;
  throw UsageError(base::compose(
      {.what = fmt::format("this reduction is not defined for {} tensors", c10::toString(dtype)),
       .hint = "Avg needs a floating-point or complex dtype, bitwise operations an integer or Bool dtype, "
               "Min and Max a dtype that is not complex"}));
}

}  // namespace lockstep::shm
