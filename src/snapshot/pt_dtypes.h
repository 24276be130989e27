// The storage classes that identify the element type of a tensor in a .pt file.
#pragma once

#include <array>
#include <string_view>

#include <c10/core/ScalarType.h>

namespace lockstep::snapshot {

struct PtDtype {
  at::ScalarType dtype;
  std::string_view storage;  // torch.FloatStorage
};

inline constexpr std::array<PtDtype, 12> kPtDtypes = {{{at::kFloat, "FloatStorage"},
                                                       {at::kDouble, "DoubleStorage"},
                                                       {at::kHalf, "HalfStorage"},
                                                       {at::kBFloat16, "BFloat16Storage"},
                                                       {at::kLong, "LongStorage"},
                                                       {at::kInt, "IntStorage"},
                                                       {at::kShort, "ShortStorage"},
                                                       {at::kChar, "CharStorage"},
                                                       {at::kByte, "ByteStorage"},
                                                       {at::kBool, "BoolStorage"},
                                                       {at::kComplexFloat, "ComplexFloatStorage"},
                                                       {at::kComplexDouble, "ComplexDoubleStorage"}}};

}  // namespace lockstep::snapshot
