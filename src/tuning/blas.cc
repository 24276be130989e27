#include "tuning/blas.h"

#include <dlfcn.h>
#include <filesystem>
#include <link.h>
#include <string_view>
#include <vector>

#include "tuning/plan.h"

namespace lockstep::tuning {

namespace {

std::vector<std::string> loaded_libraries() {
  std::vector<std::string> paths;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        if (info->dlpi_name != nullptr && *info->dlpi_name != '\0') {
          static_cast<std::vector<std::string>*>(data)->emplace_back(info->dlpi_name);
        }
        return 0;
      },
      &paths);
  return paths;
}

// Follows Debian's alternatives to the actual file.
std::string resolved(const std::string& path) {
  std::error_code failed;
  const auto real = std::filesystem::canonical(path, failed);
  return failed ? path : real.string();
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// On Debian, libblas.so.3 may be any of them; the folder it resolves to identifies it.
BlasKind kind_of(std::string_view path) {
  const auto file = path.substr(path.rfind('/') + 1);
  if (has(file, "openblas")) return BlasKind::OpenBlas;
  if (file.starts_with("libmkl_")) return BlasKind::Mkl;
  if (file.starts_with("libblis")) return BlasKind::Blis;
  if (!file.starts_with("libblas") && !file.starts_with("libcblas")) return BlasKind::Unknown;
  if (has(path, "openblas")) return BlasKind::OpenBlas;
  if (has(path, "blis")) return BlasKind::Blis;
  if (has(path, "atlas")) return BlasKind::Atlas;
  if (has(path, "mkl")) return BlasKind::Mkl;
  return BlasKind::Reference;
}

// Looks a function of OpenBLAS up in the library itself: if a plugin has loaded it as a dependency of
// libblas.so.3, it is not among the global symbols. Some builds with 64-bit integers add a suffix.
template <class Function>
Function* openblas_function(const std::string& name) {
  for (const auto& path : loaded_libraries()) {
    if (kind_of(resolved(path)) != BlasKind::OpenBlas) continue;
    void* library = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) continue;
    void* symbol = ::dlsym(library, name.c_str());
    if (symbol == nullptr) symbol = ::dlsym(library, (name + "64_").c_str());
    ::dlclose(library);  // drops only the reference that dlopen took
    if (symbol != nullptr) return reinterpret_cast<Function*>(symbol);
  }
  return nullptr;
}

}  // namespace

Blas loaded_blas() {
  Blas blas;
  // The library that provides the matrix product. Others may be loaded as well: LAPACK often depends on
  // OpenBLAS while the reference BLAS provides the product.
  Dl_info gemm{};
  if (void* symbol = ::dlsym(RTLD_DEFAULT, "sgemm_"); symbol != nullptr && ::dladdr(symbol, &gemm) != 0) {
    blas.path = resolved(gemm.dli_fname);
    blas.kind = kind_of(blas.path);
  }
  // If it is not among the global symbols, use the names of the loaded libraries.
  for (const auto& path : loaded_libraries()) {
    if (blas.kind != BlasKind::Unknown) break;
    blas.path = resolved(path);
    blas.kind = kind_of(blas.path);
  }
  if (blas.kind == BlasKind::Unknown) blas.path.clear();
  if (blas.kind != BlasKind::OpenBlas) return blas;
  if (auto* config = openblas_function<const char*()>("openblas_get_config")) blas.config = config();
  if (auto* core = openblas_function<const char*()>("openblas_get_corename")) blas.core = core();
  if (auto* threads = openblas_function<int()>("openblas_get_num_threads")) blas.threads = threads();
  return blas;
}

const char* name_of(BlasKind kind) {
  switch (kind) {
    case BlasKind::OpenBlas:
      return "OpenBLAS";
    case BlasKind::Mkl:
      return "MKL";
    case BlasKind::Blis:
      return "BLIS";
    case BlasKind::Atlas:
      return "ATLAS";
    case BlasKind::Reference:
      return "reference BLAS";
    case BlasKind::Unknown:
      break;
  }
  return "unknown";
}

bool set_blas_threads(int threads) {
  auto* set = openblas_function<void(int)>("openblas_set_num_threads");
  if (set == nullptr || threads < 1) return false;
  set(threads);
  return true;
}

}  // namespace lockstep::tuning
