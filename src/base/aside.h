// For calls that block and cannot be given up: they run on a thread of their own, and nobody has to wait for
// it.
#pragma once

#include <future>
#include <memory>
#include <thread>
#include <utility>

namespace lockstep::base {

// Unlike that of std::async, this future's destructor does not wait. The thread may outlive the caller:
// `work` must own what it uses.
template <class Work>
auto run_aside(Work work) {
  using Result = decltype(work());
  auto task = std::make_shared<std::packaged_task<Result()>>(std::move(work));
  auto result = task->get_future();
  std::thread([task = std::move(task)] { (*task)(); }).detach();
  return result;
}

}  // namespace lockstep::base
