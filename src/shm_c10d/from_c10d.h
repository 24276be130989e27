// Converts the arguments of c10d calls to those of the engine.
#pragma once

#include <algorithm>
#include <chrono>

#include "comm/dense.h"
#include "comm/from_tensors.h"

namespace lockstep::shm_c10d {

// Without its own timeout, a call uses that of the group: a negative value in c10d, 0 in the engine.
inline std::chrono::milliseconds engine_timeout(std::chrono::milliseconds timeout) {
  return std::max(timeout, std::chrono::milliseconds(0));
}

// Each tensor itself, or a copy if it is not dense.
inline comm::Tensors dense_all(const comm::Tensors& tensors) {
  comm::Tensors result;
  for (const auto& tensor : tensors) result.push_back(comm::dense_of(tensor));
  return result;
}

}  // namespace lockstep::shm_c10d
