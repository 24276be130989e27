// The errors that lockstep throws.
//
// A message says, in this order: what failed; where (rank/world, host, collective, sequence number, name,
// bytes); the evidence (which ranks are missing, the errno text); and after "hint:" the next thing to do.
// The first error of a process group poisons it: later calls throw the same error again.
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
  // The name of the class, for logs and for errors that travel between processes.
  virtual std::string_view kind() const noexcept { return "Error"; }
  // The ranks of the group that are the reason, as far as this rank can tell: those that are gone, or did not
  // come in time. Empty when nobody is known.
  const std::vector<int>& culprits() const noexcept { return culprits_; }

 private:
  std::vector<int> culprits_;
};

// The caller asked for something that cannot be done: bad arguments, environment or order of calls. A call
// that throws it has changed nothing. The exception is a synchronised backward pass, in which the other ranks
// have begun to average: there it ends the group, and they get it, too.
class UsageError : public Error {
 public:
  using Error::Error;
  std::string_view kind() const noexcept override { return "UsageError"; }
};

// The ranks do not agree: different models, different collectives, two processes with one rank.
class MismatchError : public Error {
 public:
  using Error::Error;
  std::string_view kind() const noexcept override { return "MismatchError"; }
};

// A peer process is gone.
class PeerLostError : public Error {
 public:
  using Error::Error;
  std::string_view kind() const noexcept override { return "PeerLostError"; }
};

// A peer did not do its part before the deadline; it may still be alive.
class TimeoutError : public Error {
 public:
  using Error::Error;
  std::string_view kind() const noexcept override { return "TimeoutError"; }
};

// A snapshot is missing, damaged, or of another model.
class SnapshotError : public Error {
 public:
  using Error::Error;
  std::string_view kind() const noexcept override { return "SnapshotError"; }
};

// The operating system refused: a socket, a file, a limit.
class SystemError : public Error {
 public:
  using Error::Error;
  std::string_view kind() const noexcept override { return "SystemError"; }
};

}  // namespace lockstep
