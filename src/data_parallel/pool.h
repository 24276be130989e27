// The threads of a DataParallel: one for each replica, for the lifetime of the object.
//
// Task i always runs in thread i, so that a replica reuses what OpenMP and the allocator keep per thread.
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
  // Each thread calls `begin`; the constructor returns when all calls have returned. Throws std::system_error
  // if a thread cannot be started.
  Pool(size_t threads, const std::function<void()>& begin);

  // Runs task(i) in thread i for each i below `count`, and blocks until all have returned. The tasks must not
  // throw. There is no deadline: they run the user's code, which cannot be cancelled.
  void run(size_t count, const std::function<void(size_t)>& task);

  bool is_one_of_ours(std::thread::id thread) const;

 private:
  void serve(const std::stop_token& stop, size_t index);

  std::mutex mutex_;
  std::condition_variable_any work_, done_;
  // Guarded by mutex_.
  const std::function<void(size_t)>* task_ = nullptr;
  size_t count_ = 0;  // tasks of this round
  size_t open_ = 0;   // tasks of this round that have not returned
  uint64_t round_ = 0;

  std::vector<std::jthread>
      threads_;  // last, so that the threads stop before the other members are destroyed
};

}  // namespace lockstep::data_parallel
