// What carries out the calls of a c10d backend (backend.h): shared memory (shm_engine.h), or the transport of
// a group (group_engine.h). The backend checks the arguments and describes each call as a request; an engine
// starts it and returns its Work.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "c10d_face/work.h"
#include "comm/request.h"

namespace lockstep::c10d_face {

// A barrier that shows which ranks did not come to it.
class RollCall {
 public:
  virtual ~RollCall() = default;
  // The barrier. Blocks; throws its error. To be called once.
  virtual void run(std::chrono::milliseconds timeout) = 0;
  // After an error of run(). Whether the call was made: if not, the group had failed before.
  virtual bool was_made() const = 0;
  // The ranks that have not come, as far as this rank can see now, in ascending order.
  virtual std::vector<int> absent() = 0;
  // The ranks that are known to have ended, in ascending order.
  virtual std::vector<int> ended() = 0;
};

// Belongs to one backend. Thread-safe. Destroying it does not wait: operations under way continue.
class Engine {
 public:
  // `titles` exist as long as the process.
  Engine(const char* name, const Titles& titles, int rank, int world_size)
      : name_(name), titles_(titles), rank_(rank), world_size_(world_size) {}
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const char* name() const { return name_; }  // "shm"
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  virtual std::chrono::milliseconds timeout() const = 0;  // of calls without their own
  virtual uint64_t calls() const = 0;                     // collectives started

  // Starts a collective or a message. Does not block. The pieces of the request are in the tensors of
  // WorkInfo::keep_alive. Throws the group's first error, or UsageError for what the engine does not support;
  // both translated (bindings.h).
  virtual WorkPtr start(comm::Request request, WorkInfo info) = 0;
  // Two all-gathers as one Work: `second` describes the other one, when the first is complete. The requests
  // own the memory of their pieces (Request::keep).
  virtual WorkPtr start(comm::Request first, std::function<comm::Request()> second, WorkInfo info) = 0;
  virtual std::unique_ptr<RollCall> roll_call() = 0;

  // Ends the group with this error, on all ranks.
  virtual void fail(const std::string& kind, const std::string& text) noexcept = 0;

 protected:
  Caller caller() const { return {titles_, rank_, world_size_}; }

 private:
  const char* const name_;
  const Titles& titles_;
  const int rank_;
  const int world_size_;
};

}  // namespace lockstep::c10d_face
