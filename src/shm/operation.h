// What a collective (call.h) and a message (mail.h) have in common: somebody waits for them.
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

  bool complete = false;     // well or badly
  bool abandoned = false;    // the wait for it, or the next one, is to return before that
  std::exception_ptr error;  // why it failed
  Completion* owner = nullptr;

  std::chrono::milliseconds timeout{};               // 0: the group's
  std::chrono::steady_clock::time_point deadline{};  // set when it is handed over

 protected:
  ~Operation() = default;
};

}  // namespace lockstep::shm
