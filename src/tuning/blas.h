// Which BLAS this process has really loaded. On Debian that is a matter of alternatives, not of what was
// linked.
#pragma once

#include <optional>
#include <string>

namespace lockstep::tuning {

enum class BlasKind { OpenBlas, Mkl, Blis, Atlas, Reference, Unknown };

struct Blas {
  BlasKind kind = BlasKind::Unknown;
  std::string path;            // resolved; empty when LibTorch carries its BLAS inside
  std::string config;          // OpenBLAS: version and options of its build
  std::string core;            // OpenBLAS: the processor it chose its kernels for
  std::optional<int> threads;  // OpenBLAS: the size of its pool now
};

Blas loaded_blas();
const char* name_of(BlasKind kind);

}  // namespace lockstep::tuning
