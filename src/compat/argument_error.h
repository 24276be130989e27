// The exception that LibTorch's backends throw for invalid arguments: in Python, a RuntimeError in 1.x and a
// ValueError in 2.x.
#pragma once

#include <c10/util/Exception.h>
#include <torch/version.h>

namespace lockstep::compat {

#if TORCH_VERSION_MAJOR >= 2
using ArgumentError = c10::ValueError;
#else
using ArgumentError = c10::Error;
#endif

}  // namespace lockstep::compat
