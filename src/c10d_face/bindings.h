// The inner side of lockstep/bindings.h.
#pragma once

#include <exception>

namespace lockstep::c10d_face {

// The translation of an error of this library; any other exception as it is.
std::exception_ptr translated(std::exception_ptr error) noexcept;

// While it exists, callbacks may run, unless they have been stopped.
class RunningCallbacks {
 public:
  RunningCallbacks();
  RunningCallbacks(const RunningCallbacks&) = delete;
  RunningCallbacks& operator=(const RunningCallbacks&) = delete;
  ~RunningCallbacks();
  bool allowed() const { return allowed_; }

 private:
  bool allowed_;
};

}  // namespace lockstep::c10d_face
