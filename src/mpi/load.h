// Loads the module liblockstep_mpi.so.
#pragma once

#include <string>

#include "mpi/engine.h"

namespace lockstep::mpi {

struct Loaded {
  Engine* engine = nullptr;
  std::string fault = {};  // why there is none
};

// The dynamic linker searches next to liblockstep.so (by its RUNPATH), then as for every other library. The
// first call decides. Thread-safe.
const Loaded& load();

}  // namespace lockstep::mpi
