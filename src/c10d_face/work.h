// c10d's handle of an operation: a collective or a message. Each engine derives its own from this one.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "c10d_face/titles.h"

namespace lockstep::c10d_face {

// What c10d needs to know about an operation, in addition to the engine's request.
struct WorkInfo {
  c10d::OpType type;
  std::vector<at::Tensor> inputs = {};                // for the profiler
  std::vector<std::vector<at::Tensor>> outputs = {};  // what result() and the future return
  std::vector<at::Tensor> keep_alive = {};            // buffers that must exist until it is complete
  std::function<void()> finish = {};  // copies results from these buffers to the caller's tensors
};

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// What all operations of a backend have in common.
struct Caller {
  const Titles& titles;
  int rank, world_size;
};

class Work : public c10d::Work {
 public:
  bool isCompleted() override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override {}
  // If the timeout of this wait expires, the operation continues.
  bool wait(std::chrono::milliseconds timeout) override;
  // Makes the current wait, or else the next one, return false. The operation itself continues, as with Gloo,
  // because a single rank cannot cancel what the other ranks have already seen.
  void abort() override { interrupt(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 protected:
  using Clock = std::chrono::steady_clock;
  enum class Waited { Complete, TimedOut, Interrupted };

  // The profiler sees the operation from here until it is complete.
  Work(const Caller& caller, WorkInfo info);

  // ---- For the engine

  // Starts the operation. From here on, this object exists at least until conclude(). If `start` throws,
  // throws its error, translated.
  template <class Start>
  void begin(Start&& start);
  // The operation is complete; call it once. The results are copied to the caller's tensors in this thread.
  // `source`: the sender of a message that was received.
  void settle(std::exception_ptr error, int source = kNoSource) noexcept;
  // Runs user code: callbacks of futures. Called by settle(), or after call_conclude(). May destroy *this.
  void conclude() noexcept;
  const std::vector<at::Tensor>& keep_alive() const { return info_.keep_alive; }

  // Advances the operation without waiting, if that is necessary.
  virtual void poll() = 0;
  // Blocks until the operation is complete.
  virtual Waited wait_for_it(std::optional<Clock::time_point> until) = 0;
  virtual void interrupt() = 0;
  // From now on, a thread may wait for the future, which does not poll.
  virtual void expect_no_polls() {}
  // Calls conclude(), soon, in a thread that may run user code.
  virtual void call_conclude() = 0;
  // The operation needs nothing of its group any more. Called before anybody who waits is told.
  virtual void let_go() noexcept {}
  virtual void fail_group(const std::string& kind, const std::string& text) noexcept = 0;

  static constexpr int kNoSource = -1;

 private:
  static std::exception_ptr translated_current() noexcept;
  c10::IValue value() const;
  void complete_future();
  void run_callbacks() noexcept;
  void release_memory() noexcept;

  const char* const title_;
  const int world_size_;
  WorkInfo info_;
  c10::intrusive_ptr<Work> self_;  // from begin() until conclude()
  int source_ = kNoSource;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool future_completed_ = false;
  std::exception_ptr error_;
};

template <class Start>
void Work::begin(Start&& start) {
  self_ = c10::intrusive_ptr<Work>::reclaim_copy(this);
  try {
    start();
  } catch (...) {
    self_.reset();
    std::rethrow_exception(translated_current());
  }
}

}  // namespace lockstep::c10d_face
