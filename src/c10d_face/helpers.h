// Threads that wait, and that run the callbacks of users, for an engine whose own threads must not. They are
// started when they are needed, and are not joined, because a callback may take any time: the last one to
// end destroys this object.
//
// Thread-safe, but not to be used in a forked child.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace lockstep::c10d_face {

class Helpers : public std::enable_shared_from_this<Helpers> {
 public:
  using Task = std::function<void()>;

  // Runs the task in a thread, at once: it never waits for the end of another task. Throws SystemError if
  // there is no thread for it.
  void run(Task task);
  // Threads without a task end. Later tasks are still run.
  void close();

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;  // not begun
  size_t idle_ = 0;         // threads without a task
  bool closed_ = false;
};

}  // namespace lockstep::c10d_face
