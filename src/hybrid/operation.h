// One collective under way: what its two halves do.
//
// Its work consists of steps, for example one for each chunk. In the front half of a step, the machine's
// ranks combine their bytes, and each sends its share to other machines. In the back half, each rank receives
// from the other machines, and the machine's ranks share the results. The front half of a step never waits
// for another machine, so that it can run ahead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "comm/link.h"
#include "comm/request.h"
#include "hybrid/buffers.h"
#include "hybrid/machine.h"
#include "hybrid/topology.h"

namespace lockstep::hybrid {

// What all calls of a group share.
struct Paths {
  const Topology& topology;
  Machine& machine;
  comm::Link& link;
  Buffers& buffers;
};

// A call of the group.
struct Task {
  const comm::Request& request;  // must outlive the operation
  uint64_t number;               // of the call in its group
  uint32_t digest;               // of its fingerprint
  std::function<bool()> hopeless;
};

class Operation {
 public:
  Operation(const Paths& paths, Task task);
  virtual ~Operation() = default;

  virtual size_t steps() const { return 1; }
  // Steps run in their order; the back half of a step after its front half.
  // The machine's ranks meet, and find out whether they make the same call.
  virtual void front(size_t step);
  virtual void back(size_t step) = 0;

 protected:
  const Topology& topology() const { return paths_.topology; }
  Buffer take_buffer(size_t bytes) const { return paths_.buffers.take(bytes); }

  // A call of the local ranks that is a part of this one. Pieces are added by the caller.
  comm::Request local(comm::Kind kind, int root = comm::kNoRoot) const;
  void run(Half half, comm::Request&& request) const {
    paths_.machine.run(half, std::move(request), task_.hopeless);
  }

  // Transfers of the part with this number; of nothing if the piece is empty. `buffer`: the owner of the
  // piece, if it is not the request's.
  comm::TransferPtr send(int to, uint64_t part, comm::Piece piece, const Buffer& buffer = {}) const;
  comm::TransferPtr receive(int from, uint64_t part, comm::Piece piece, const Buffer& buffer = {}) const;
  void wait(const comm::TransferPtr& transfer) const {
    if (transfer) transfer->wait(task_.hopeless);
  }

  const comm::Request& request() const { return task_.request; }
  uint64_t number() const { return task_.number; }
  size_t element_bytes() const { return element_bytes_; }

 private:
  const Paths paths_;
  const Task task_;
  comm::CallFacts facts_;
  const size_t element_bytes_;
  const comm::Link::Owner owner_;  // of the request's memory
};

// Throws UsageError if the reduction is not defined.
std::unique_ptr<Operation> make_operation(const Paths& paths, Task task);

}  // namespace lockstep::hybrid
