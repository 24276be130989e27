// The message of an exception that LibTorch may have thrown.
#pragma once

#include <exception>
#include <string>

#include <c10/util/Exception.h>

namespace lockstep::compat {

// LibTorch's own exceptions append a C++ stack trace to what(); readers of the error do not need it.
inline std::string message_of(const std::exception& error) {
  if (const auto* torch_error = dynamic_cast<const c10::Error*>(&error))
    return torch_error->what_without_backtrace();
  return error.what();
}

}  // namespace lockstep::compat
