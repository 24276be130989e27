// The errors that lockstep throws.
//
// A message states, in this order: what failed; where (rank/world, host, collective, sequence number, name,
// bytes); the evidence (the missing ranks, the errno text); and after "hint:" what to do next. The first
// error of a process group poisons the group: later calls throw the same error again.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/cxx20.h>

namespace lockstep {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, std::vector<int> culprits = {})
      : std::runtime_error(message), culprits_(std::move(culprits)) {}
  // The name of the class, for logs and for errors that are sent to other processes.
  virtual std::string_view kind() const noexcept { return "Error"; }
  // The ranks of the group that caused the error as far as this rank knows: those that have ended, or did not
  // arrive in time. Empty if none is known.
  const std::vector<int>& culprits() const noexcept { return culprits_; }

 private:
  std::vector<int> culprits_;
};

// The request is invalid: bad arguments, environment or order of calls. A call that throws this has changed
// nothing, with one exception: in a synchronised backward pass the other ranks have begun to average, so the
// error poisons the group and is thrown on those ranks, too.
class UsageError : public Error {
 public:
  using Error::Error;
  std::string_view kind() const noexcept override { return "UsageError"; }
};

// The ranks do not match: different models, different collectives, two processes with the same rank.
class MismatchError : public Error {
 public:
  using Error::Error;
  std::string_view kind() const noexcept override { return "MismatchError"; }
};

// A peer process has ended or cannot be reached.
class PeerLostError : public Error {
 public:
  using Error::Error;
  std::string_view kind() const noexcept override { return "PeerLostError"; }
};

// A peer did not do its part before the deadline. It may still be alive.
class TimeoutError : public Error {
 public:
  using Error::Error;
  std::string_view kind() const noexcept override { return "TimeoutError"; }
};

// A snapshot is missing, damaged, or belongs to another model.
class SnapshotError : public Error {
 public:
  using Error::Error;
  std::string_view kind() const noexcept override { return "SnapshotError"; }
};

// The operating system refused an operation: a socket, a file, a limit.
class SystemError : public Error {
 public:
  using Error::Error;
  std::string_view kind() const noexcept override { return "SystemError"; }
};

}  // namespace lockstep
