// Transfers the bytes of a group: over shared memory, Gloo or another c10d backend, or not at all if the
// world size is 1.
//
// A transport belongs to one generation of a group (group.h) and ends with it. It executes Requests and
// throws lockstep's errors. The first error is final: every later call throws it again.
//
// Not thread-safe, unless an implementation promises more.
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <lockstep/error.h>

#include "comm/common_memory.h"
#include "comm/request.h"
#include "comm/update.h"
#include "comm/work.h"

namespace lockstep::comm {

class Transport {
 public:
  virtual ~Transport() = default;

  // ---- Capabilities

  // Whether ReduceOp::Avg of such tensors costs no more than a sum: the division is part of the same pass
  // over memory.
  virtual bool averages(c10::ScalarType dtype, c10::Device device) const = 0;
  // Whether tensors on this device are supported.
  virtual bool carries(c10::Device device) const { return device.is_cpu(); }
  // Whether allocate() returns memory of this device that is reduced without copying.
  virtual bool supplies_memory(c10::Device) const { return false; }
  // Whether it can send an all-reduce of Float in this dtype between machines (Request::wire).
  virtual bool narrows(c10::ScalarType /*wire*/) const { return false; }
  // Whether calls in progress advance faster if their caller polls them (Work::State::is_done).
  virtual bool needs_polling() const { return false; }
  // Whether requests must own the memory of their pieces (Request::keep) even if their caller waits: after a
  // wait that was given up, other threads still use that memory.
  virtual bool needs_owners() const { return false; }
  // The size from which a larger all-reduce is no faster per byte, if others are under way at the same time.
  // Buckets of gradients are not larger by default: the sooner one is full, the more of its way is hidden
  // behind the backward pass.
  virtual size_t bucket_bytes() const { return SIZE_MAX; }
  // The number of collectives started; 0 if the transport does not count them.
  virtual uint64_t calls() const { return 0; }
  // Whether the transport itself reports a failure on one rank to the ranks that wait for it. Otherwise the
  // group publishes it in the store.
  virtual bool reports_failures() const { return false; }

  // ---- Operations

  // Executes the request; blocks until it is complete on this rank. For a device with streams, complete means
  // that the current stream will wait for it: what is queued there afterwards sees the results.
  virtual void run(Request& request) = 0;
  // Starts the request. The requests of all ranks are matched in the order in which they were started.
  virtual std::shared_ptr<Work::State> start(Request&& request) = 0;
  // How it updates in one pass over memory; null if it cannot. Needs memory that it has supplied.
  virtual OnePass* one_pass() { return nullptr; }
  // Ends the group's communication: calls in progress and later calls throw this error. Does not block.
  virtual void fail(const Error& why) noexcept = 0;

  // Returns uninitialised, contiguous memory for tensors of this group. The memory belongs to the process: it
  // outlives the transport, and the next generation of the group can use it unchanged.
  virtual at::Tensor allocate(at::IntArrayRef sizes, const at::TensorOptions& options);
  // Null if ranks cannot access each other's memory.
  virtual Neighbours* neighbours() { return nullptr; }
  // Whether this is such memory, and still reduced with no copy.
  virtual bool supplied(const at::Tensor&) const { return false; }
};

}  // namespace lockstep::comm
