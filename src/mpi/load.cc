#include "mpi/load.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace lockstep::mpi {

namespace {

constexpr const char* kFile = "liblockstep_mpi.so";

Loaded load_module() {
  // Global, because the components that Open MPI loads use the symbols of libmpi without naming it.
  void* const module = ::dlopen(kFile, RTLD_NOW | RTLD_GLOBAL);
  if (module == nullptr) return {.fault = ::dlerror()};
  const auto entry = reinterpret_cast<EntryPoint>(::dlsym(module, kEntryPoint));
  auto* const engine = entry == nullptr ? nullptr : entry(kInterface);
  if (engine == nullptr) return {.fault = fmt::format("{} is from another build of lockstep", kFile)};
  return {.engine = engine};
}

}  // namespace

const Loaded& load() {
  static const Loaded loaded = load_module();
  return loaded;
}

}  // namespace lockstep::mpi
