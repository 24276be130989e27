// The common part of a call (call.h) and a message (messages.h): the state that a waiting thread needs.
#pragma once

#include <chrono>
#include <exception>

namespace lockstep::shm {

// Notified, outside of all locks, when its operation is complete. completed() is called by the thread that
// has completed the operation, which may be doing something else, so user code must not run there. User code
// runs in conclude(), which the endpoint's background thread calls if completed() requests it
// (Endpoint::defer).
class Completion {
 public:
  virtual void completed() noexcept = 0;
  virtual void conclude() noexcept = 0;

 protected:
  ~Completion() = default;
};

// From its start until it is complete, guarded by the lock of the endpoint that it was started on.
struct Operation {
  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  bool complete = false;     // has succeeded or failed
  bool interrupted = false;  // the current wait for it, or the next one, returns early
  std::exception_ptr error;  // why it failed
  Completion* owner = nullptr;

  std::chrono::milliseconds timeout{};               // 0: the group's
  std::chrono::steady_clock::time_point deadline{};  // set when it is started
  std::chrono::steady_clock::time_point ended{};     // when it completed, if it has an owner

 protected:
  ~Operation() = default;
};

}  // namespace lockstep::shm
