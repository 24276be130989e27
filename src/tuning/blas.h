// Detects the BLAS that this process has loaded. On Debian, alternatives decide that, not the link line.
#pragma once

#include <optional>
#include <string>

namespace lockstep::tuning {

enum class BlasKind { OpenBlas, Mkl, Blis, Atlas, Reference, Unknown };

struct Blas {
  BlasKind kind = BlasKind::Unknown;
  std::string path;            // resolved; empty if LibTorch has its BLAS linked in
  std::string config;          // OpenBLAS: its version and build options
  std::string core;            // OpenBLAS: the processor type of the selected kernels
  std::optional<int> threads;  // OpenBLAS: the current size of its thread pool
};

Blas loaded_blas();
const char* name_of(BlasKind kind);

}  // namespace lockstep::tuning
