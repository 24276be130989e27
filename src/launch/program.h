// Finds the program that the workers execute, as a shell does.
#pragma once

#include <string>

#include <lockstep/error.h>

namespace lockstep::launch {

// A worker cannot be started. Ends the job with the exit status that a shell would return.
class CannotStart : public Error {
 public:
  CannotStart(int status, const std::string& message) : Error(message), status_(status) {}
  int status() const { return status_; }

 private:
  int status_;
};

constexpr int kNotFound = 127;       // a shell's status for a program that does not exist
constexpr int kNotExecutable = 126;  // a shell's status for a program that cannot be executed

// Returns the path to execute. A name without a slash is looked up in PATH. Throws CannotStart.
std::string find_program(const std::string& name);

// The error for an execve(2) that failed with `error_number`.
CannotStart cannot_execute(const std::string& path, int error_number);

}  // namespace lockstep::launch
