// Runs a call that blocks and cannot be cancelled on its own thread, so that the caller can stop waiting for
// it.
#pragma once

#include <future>
#include <memory>
#include <thread>
#include <utility>

namespace lockstep::base {

// Unlike with std::async, the destructor of the returned future does not block. The thread may outlive the
// caller, so `work` must own everything it uses.
template <class Work>
auto run_aside(Work work) {
  using Result = decltype(work());
  auto task = std::make_shared<std::packaged_task<Result()>>(std::move(work));
  auto result = task->get_future();
  std::thread([task = std::move(task)] { (*task)(); }).detach();
  return result;
}

}  // namespace lockstep::base
