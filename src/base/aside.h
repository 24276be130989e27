// Runs a call that blocks and cannot be cancelled on its own thread, so that the caller can stop waiting for
// it.
#pragma once

#include <exception>
#include <future>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

namespace lockstep::base {

// Unlike with std::async, the destructor of the returned future does not block. The thread may outlive the
// caller, so `work` must own everything it uses. It is destroyed before the result is there: who has the
// result can rely on what the work owned being released.
template <class Work>
auto run_aside(Work work) {
  using Result = decltype(work());
  std::promise<Result> promise;
  auto result = promise.get_future();
  std::thread([promise = std::move(promise), work = std::make_optional(std::move(work))]() mutable {
    try {
      if constexpr (std::is_void_v<Result>) {
        (*work)();
        work.reset();
        promise.set_value();
      } else {
        auto value = (*work)();
        work.reset();
        promise.set_value(std::move(value));
      }
    } catch (...) {
      work.reset();
      promise.set_exception(std::current_exception());
    }
  }).detach();
  return result;
}

}  // namespace lockstep::base
