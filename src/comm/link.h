// Carries bytes between two ranks: the messages of an engine for several machines, such as Gloo
// (gloo/link.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace lockstep::comm {

// The connection to a rank failed: its peer has ended, closed it, or is not reachable.
struct LinkError : std::runtime_error {
  LinkError(int rank, const std::string& what) : std::runtime_error(what), peer(rank) {}
  int peer;
};

// A transfer in progress. Destroying it does not cancel it.
class Transfer {
 public:
  virtual ~Transfer() = default;
  // Blocks until the memory may be used again; what was received is then there. `hopeless` is called from
  // time to time, on this thread or another, never on both at once; once it returns true, the wait ends with
  // std::runtime_error. Throws LinkError, or the engine's exceptions.
  virtual void wait(const std::function<bool()>& hopeless) = 0;
};
using TransferPtr = std::unique_ptr<Transfer>;

// Thread-safe.
class Link {
 public:
  // Keeps the memory of a transfer alive until the engine no longer uses it, even if the wait is given up.
  using Owner = std::shared_ptr<const void>;

  virtual ~Link() = default;

  // All start a transfer and return. Transfers between two ranks with the same tag (wire_tags.h) are matched
  // in their order; their sizes must be equal, and not 0. Transfers with consecutive tags may take different
  // routes.
  virtual TransferPtr send(int to, int tag, const std::byte* data, size_t bytes, Owner owner) = 0;
  // The same as send(), but may hold the message back until the next transfer to that rank, or a wait.
  virtual TransferPtr send_with_next(int to, int tag, const std::byte* data, size_t bytes, Owner owner) {
    return send(to, tag, data, bytes, std::move(owner));
  }
  virtual TransferPtr receive(int from, int tag, std::byte* data, size_t bytes, Owner owner) = 0;

  // Closes all connections: ranks that wait for this one, and transfers that wait here, stop waiting. For a
  // group that has failed.
  virtual void hang_up() noexcept = 0;
};

}  // namespace lockstep::comm
