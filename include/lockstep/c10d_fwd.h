// The name of c10d's backend class in this version of LibTorch, without the cost of including its header.
#pragma once

#include <torch/version.h>

#include <lockstep/cxx20.h>

namespace c10d {
class ProcessGroup;
class Backend;  // NOLINT(bugprone-forward-declaration-namespace): of LibTorch 2
}  // namespace c10d

namespace lockstep {

// LibTorch 2.0 split c10d::ProcessGroup; since then, backends derive from c10d::Backend.
#if TORCH_VERSION_MAJOR >= 2
using c10d_backend = c10d::Backend;
#else
using c10d_backend = c10d::ProcessGroup;
#endif

}  // namespace lockstep
