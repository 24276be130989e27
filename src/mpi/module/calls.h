// MPI's error codes as exceptions.
#pragma once

#include <mpi.h>
#include <stdexcept>
#include <string>

namespace lockstep::mpi {

// `call`: what returned the code. Throws std::runtime_error unless that is MPI_SUCCESS.
inline void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  throw std::runtime_error(std::string(call) + " failed: " + std::string(text, static_cast<size_t>(length)));
}

}  // namespace lockstep::mpi
