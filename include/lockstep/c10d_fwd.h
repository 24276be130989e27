// The name of c10d's backend class in this LibTorch, without the cost of including it.
#pragma once

#include <torch/version.h>

#include <lockstep/cxx20.h>

namespace c10d {
class ProcessGroup;
class Backend;
}  // namespace c10d

namespace lockstep {

// c10d::ProcessGroup was split in 2.0; what a backend implements is c10d::Backend since then.
#if TORCH_VERSION_MAJOR >= 2
using c10d_backend = c10d::Backend;
#else
using c10d_backend = c10d::ProcessGroup;
#endif

}  // namespace lockstep
