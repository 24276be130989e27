// What a collective (call.h) and a message (messages.h) have in common: somebody waits for them.
#pragma once

#include <chrono>
#include <exception>

namespace lockstep::shm {

// Is told, outside of all locks, that its operation is complete, by whichever thread has made it so: one that
// is in the middle of something else. So code of the user's must not run in completed(), but in conclude(),
// which the endpoint's own thread calls when completed() has asked for it (Endpoint::defer).
class Completion {
 public:
  virtual void completed() noexcept = 0;
  virtual void conclude() noexcept = 0;

 protected:
  ~Completion() = default;
};

// Guarded by the lock of the endpoint that it was handed to, from then until it is complete.
struct Operation {
  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  bool complete = false;     // whether it succeeded or failed
  bool interrupted = false;  // the wait for it, or the next one, returns before that
  std::exception_ptr error;  // why it failed
  Completion* owner = nullptr;

  std::chrono::milliseconds timeout{};               // 0: the group's
  std::chrono::steady_clock::time_point deadline{};  // set when it is handed over
  std::chrono::steady_clock::time_point ended{};     // when it became complete, if it has an owner

 protected:
  ~Operation() = default;
};

}  // namespace lockstep::shm
