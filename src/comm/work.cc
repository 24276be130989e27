#include <stdexcept>
#include <thread>
#include <utility>

#include <lockstep/work.h>

#include "base/deadline.h"
#include "comm/work_state.h"

namespace lockstep {

namespace {

using namespace std::chrono_literals;
using base::Deadline;

// A call that takes longer is worth looking around for.
constexpr auto kUsualWait = 400ms;
// After this long a wait is slow enough to leave word of it in the store.
constexpr auto kSlowWait = 1s;
constexpr auto kBetweenLooks = 100ms;
constexpr auto kBetweenQuestions = 2ms;

// Gloo's threads wait for their peers in ways that do not notice the end of a third one, so this one watches:
// the call is left to them when there is no hope for it.
void wait_and_watch(Work::State& state) {
  try {
    state.c10d->wait(kUsualWait);
    return;
  } catch (const std::exception&) {
    // Slow, or failed; or done by now, whatever the exception says. The wait below knows.
  }
  const auto slow = Deadline::in(kSlowWait - kUsualWait);
  auto look = Deadline::in(0ms);
  bool reported = false;
  // Asking again and again costs less than waits that end in an exception.
  while (!state.c10d->isCompleted()) {
    if (slow.expired() && !std::exchange(reported, true)) comm::report_waiting(*state.group, state.call);
    if (look.expired()) {
      if (comm::is_hopeless(*state.group)) throw std::runtime_error("the wait was given up");
      look = Deadline::in(kBetweenLooks);
    }
    std::this_thread::sleep_for(kBetweenQuestions);
  }
  state.c10d->wait();
}

void wait_for_backend(Work::State& state) {
  if (state.group->native != nullptr) {
    state.c10d->wait();  // knows who is where
  } else if (state.point_to_point) {
    state.group->messages.wait(state.c10d, [&] { return comm::is_hopeless(*state.group); });
  } else {
    wait_and_watch(state);
  }
}

}  // namespace

void Work::wait() {
  if (!state_) return;
  if (state_->error) std::rethrow_exception(state_->error);
  if (!state_->c10d) return;
  try {
    try {
      wait_for_backend(*state_);
    } catch (...) {
      comm::throw_failure(*state_->group, state_->call);
    }
    if (state_->finish) state_->finish();
  } catch (...) {
    state_->error = std::current_exception();
    throw;
  }
  state_->c10d.reset();
  state_->finish = nullptr;
  state_->travelling.clear();
}

bool Work::is_done() const {
  return !state_ || state_->error || !state_->c10d || state_->c10d->isCompleted();
}

std::vector<at::Tensor> Work::result() {
  wait();
  return state_ ? state_->result : std::vector<at::Tensor>{};
}

}  // namespace lockstep
