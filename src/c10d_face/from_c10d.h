// Converts lists of tensors to what an engine takes.
#pragma once

#include "comm/dense.h"
#include "comm/from_tensors.h"

namespace lockstep::c10d_face {

// Each tensor itself, or a copy if it is not dense.
inline comm::Tensors dense_all(const comm::Tensors& tensors) {
  comm::Tensors result;
  for (const auto& tensor : tensors) result.push_back(comm::dense_of(tensor));
  return result;
}

}  // namespace lockstep::c10d_face
