// What carries the bytes of a group: shared memory, Gloo, another c10d backend, or nothing in a world of one.
//
// A transport belongs to one generation of a group (group.h) and ends with it. It is told what to do by a
// Request and reports what goes wrong as one of lockstep's errors. The first error is final: every later call
// throws it again.
//
// Not thread-safe, unless an implementation promises more.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <lockstep/error.h>

#include "comm/request.h"
#include "comm/work.h"

namespace lockstep::comm {

class Transport {
 public:
  virtual ~Transport() = default;

  // ---- What it can do

  // ReduceOp::Avg of this dtype costs no more than a sum: the division is part of the same pass over memory.
  virtual bool averages(c10::ScalarType dtype) const = 0;
  // Tensors on this device can be given and taken.
  virtual bool carries(c10::Device device) const { return device.is_cpu(); }
  // allocate() returns memory that is reduced with no copy.
  virtual bool supplies_memory() const { return false; }
  // Calls that nobody waits for advance faster when their caller asks for them now and then
  // (Work::State::is_done).
  virtual bool needs_polling() const { return false; }
  // Requests must own the memory of their pieces (Request::keep) also when their caller waits: a wait that is
  // given up leaves the bytes to threads that go on.
  virtual bool needs_owners() const { return false; }
  // A failure on one rank reaches the ranks that wait for it by itself. Otherwise the group publishes it in
  // the store.
  virtual bool reports_failures() const { return false; }

  // ---- What it does

  // Carries the request out and returns when it is complete here.
  virtual void run(Request& request) = 0;
  // Begins it. Requests of all ranks are matched in the order in which they were begun.
  virtual std::shared_ptr<Work::State> start(Request&& request) = 0;
  // Ends the group's communication: calls under way and to come throw this error. Does not block.
  virtual void fail(const Error& why) noexcept = 0;

  // Uninitialised, contiguous memory for tensors of this group. Belongs to the process: it outlives the
  // transport, and the next generation of the group can use it as it is.
  virtual at::Tensor allocate(at::IntArrayRef sizes, const at::TensorOptions& options);
  // Whether this is such memory, and still reduced with no copy.
  virtual bool supplied(const at::Tensor&) const { return false; }
};

}  // namespace lockstep::comm
