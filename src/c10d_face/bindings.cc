#include "c10d_face/bindings.h"

#include <atomic>
#include <chrono>
#include <thread>

#include <lockstep/bindings.h>

namespace lockstep {

namespace {

using namespace std::chrono_literals;

constexpr auto kLongestCallback = 1s;

std::atomic<std::exception_ptr (*)(const Error&)> translation{nullptr};
std::atomic<bool> stopped{false};
std::atomic<int> running{0};

}  // namespace

void bindings::translate_errors(std::exception_ptr (*translate)(const Error& error)) {
  translation.store(translate);
}

void bindings::stop_callbacks() {
  stopped.store(true);
  const auto end = std::chrono::steady_clock::now() + kLongestCallback;
  while (running.load() > 0 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);
}

namespace c10d_face {

std::exception_ptr translated(std::exception_ptr error) noexcept {
  const auto translate = translation.load();
  if (!error || translate == nullptr) return error;
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return translate(known);
  } catch (...) {
    return error;
  }
}

// Counted before the flag is read: stop_callbacks() sees either this one, or this one sees the flag.
RunningCallbacks::RunningCallbacks() : allowed_((running.fetch_add(1), !stopped.load())) {}

RunningCallbacks::~RunningCallbacks() { running.fetch_sub(1); }

}  // namespace c10d_face

}  // namespace lockstep
