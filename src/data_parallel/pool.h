// Threads that wait for work: one for each replica, for the life of a DataParallel.
//
// Task i always runs in thread i: what OpenMP and the heap keep for each thread serves the same replica
// again.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

namespace lockstep::data_parallel {

class Pool {
 public:
  // Each thread calls `begin` first; all have when the constructor returns. Throws std::system_error when
  // there are no more threads to be had.
  Pool(size_t threads, const std::function<void()>& begin);

  // Runs task(i), which must not throw, in thread i for each i below `count`. Returns when all have ended:
  // they run the user's code, which cannot be given up half-way, so that there is no deadline.
  void run(size_t count, const std::function<void(size_t)>& task);

  bool is_one_of_ours(std::thread::id thread) const;

 private:
  void serve(const std::stop_token& stop, size_t index);

  std::mutex mutex_;
  std::condition_variable_any work_, done_;
  // Guarded by mutex_.
  const std::function<void(size_t)>* task_ = nullptr;
  size_t count_ = 0;  // of the tasks of this round
  size_t open_ = 0;   // that have not ended
  uint64_t round_ = 0;

  std::vector<std::jthread> threads_;  // last: they stop before what they use is gone
};

}  // namespace lockstep::data_parallel
