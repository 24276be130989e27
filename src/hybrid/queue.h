// Executes the operations of a group in the order in which they were submitted. Two threads run their halves
// (operation.h): while one waits for other machines, the other reduces what comes next. The threads are
// started when an operation is first left to them.
//
// The first error ends the queue: it becomes the error of every operation that is not complete, and of all
// later ones. It is reported when no thread executes a step any more, so that none writes to the caller's
// memory afterwards.
//
// Thread-safe, except that operations must be submitted one at a time.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "comm/lookout.h"
#include "hybrid/machine.h"
#include "hybrid/operation.h"

namespace lockstep::hybrid {

class Queue {
 public:
  using Clock = std::chrono::steady_clock;

  struct Entry {
    comm::Request request;
    uint64_t number = 0;
    std::optional<comm::Lookout> lookout;
    std::unique_ptr<Operation> operation;

    // The rest belongs to the queue.
    size_t fronts = 0, backs = 0;  // steps that are done
    bool complete = false;
    std::exception_ptr error;
    Clock::time_point ended;
  };
  using EntryPtr = std::shared_ptr<Entry>;

  // `open`: called before the first back half of an entry, as a part of it. `explain`: called once, while
  // handling the exception of an entry's step. It returns the error to report, and makes the waits of other
  // steps end.
  using Explain = std::function<std::exception_ptr(const Entry&)>;
  Queue(std::function<void(Entry&)> open, Explain explain);
  // Blocks until the operations under way are complete.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Leaves it to the threads.
  void submit(const EntryPtr& entry);
  // The same, and blocks until it is complete; throws its error. If nothing else is under way, this thread
  // executes it itself.
  void run(const EntryPtr& entry);
  // Blocks until it is complete; throws its error.
  void wait(Entry& entry);
  bool is_complete(const Entry& entry) const;

  // Ends the queue with this error. The caller makes the waits of steps end.
  void fail(std::exception_ptr error) noexcept;
  void throw_if_failed() const;
  bool has_failed() const { return failed_.load(std::memory_order_acquire); }

 private:
  using Lock = std::unique_lock<std::mutex>;

  void execute(Entry& entry);
  void run_thread(Half half);
  // The next entry of which this half can do a step, while the other half does others; null at the end.
  Entry* next(Lock& lock, Half half);
  Entry* ready_front();
  void step(Entry& entry, Half half) noexcept;
  void end_step(Entry& entry, Half half);
  void report_failure();
  static bool conflict(const comm::Request& earlier, const comm::Request& later);

  const std::function<void(Entry&)> open_;
  const Explain explain_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<EntryPtr> under_way_;  // not complete, in their order
  bool inline_ = false;             // the only entry is executed by the thread that submitted it
  bool ending_ = false;
  std::exception_ptr failure_;
  std::atomic<bool> failed_{false};     // failure_ is set, or is being explained
  int running_ = 0;                     // threads that execute a step
  std::array<std::thread, 2> threads_;  // by Half
};

}  // namespace lockstep::hybrid
