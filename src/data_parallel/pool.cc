#include "data_parallel/pool.h"

#include <algorithm>

namespace lockstep::data_parallel {

Pool::Pool(size_t threads, const std::function<void()>& begin) {
  threads_.reserve(threads);
  for (size_t i = 0; i < threads; ++i) {
    threads_.emplace_back([this, i](const std::stop_token& stop) { serve(stop, i); });
  }
  run(threads, [&begin](size_t) { begin(); });
}

void Pool::run(size_t count, const std::function<void(size_t)>& task) {
  std::unique_lock lock(mutex_);
  task_ = &task;
  count_ = open_ = count;
  ++round_;
  work_.notify_all();
  done_.wait(lock, [this] { return open_ == 0; });
}

bool Pool::is_one_of_ours(std::thread::id thread) const {
  return std::any_of(threads_.begin(), threads_.end(),
                     [thread](const std::jthread& ours) { return ours.get_id() == thread; });
}

void Pool::serve(const std::stop_token& stop, size_t index) {
  uint64_t served = 0;
  std::unique_lock lock(mutex_);
  while (work_.wait(lock, stop, [&] { return round_ != served; })) {
    served = round_;
    if (index >= count_) continue;
    const auto& task = *task_;
    lock.unlock();
    task(index);
    lock.lock();
    if (--open_ == 0) done_.notify_all();
  }
}

}  // namespace lockstep::data_parallel
