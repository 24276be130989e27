// For code that speaks c10d already: the complete type behind ProcessGroup::c10d().
#pragma once

#include <torch/version.h>

#if TORCH_VERSION_MAJOR >= 2
#include <torch/csrc/distributed/c10d/Backend.hpp>
#else
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#endif

#include <lockstep/c10d_fwd.h>
