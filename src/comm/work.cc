#include <functional>
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

// After this long a wait is slow enough to leave word of it in the store.
constexpr auto kSlowWait = 1s;
constexpr auto kBetweenLooks = 100ms;
constexpr auto kBetweenQuestions = 2ms;

// Looks around while a call takes its time.
class Lookout {
 public:
  explicit Lookout(Work::State& state) : state_(state) {}
  bool hopeless() {
    if (slow_.expired() && !std::exchange(reported_, true)) {
      comm::report_waiting(*state_.group, state_.call);
    }
    return comm::is_hopeless(*state_.group);
  }

 private:
  Work::State& state_;
  const Deadline slow_ = Deadline::in(kSlowWait);
  bool reported_ = false;
};

bool ends_soon(c10d::Work& work) {
  try {
    work.wait(comm::kUsualWait);
    return true;
  } catch (const std::exception&) {
    return false;  // slow, or failed; or done by now, whatever the exception says
  }
}

// Gloo's threads wait for their peers in ways that do not notice the end of a third one, so this one watches:
// the call is left to them when there is no hope for it.
void watch(Work::State& state, Lookout& lookout) {
  auto look = Deadline::in(0ms);
  // Asking again and again costs less than waits that end in an exception.
  while (!state.c10d->isCompleted()) {
    if (look.expired()) {
      if (lookout.hopeless()) throw std::runtime_error("the wait was given up");
      look = Deadline::in(kBetweenLooks);
    }
    std::this_thread::sleep_for(kBetweenQuestions);
  }
  state.c10d->wait();
}

void wait_for_collective(Work::State& state) {
  auto& group = *state.group;
  Lookout lookout(state);
  const auto agree = [&](const std::function<bool()>& hopeless) {
    if (group.agreement) group.agreement->verify(state.call.number, *group.messages, hopeless);
  };
  if (!ends_soon(*state.c10d)) {
    try {
      // A call that differs from those of its peers never ends.
      agree([&] { return state.c10d->isCompleted() || lookout.hopeless(); });
    } catch (const std::exception&) {
      // The end of the call itself says more.
    }
    watch(state, lookout);
  }
  agree([&] { return lookout.hopeless(); });
}

void wait_for_message(Work::State& state) {
  auto& group = *state.group;
  const auto hopeless = [&] { return comm::is_hopeless(group); };
  if (state.announcement) state.announcement->verify(*group.messages, hopeless);
  group.messages->wait(state.c10d, hopeless);
}

void wait_for_backend(Work::State& state) {
  if (state.group->native != nullptr) {
    state.c10d->wait();  // knows who is where
    return;
  }
  if (!state.c10d->isCompleted()) comm::refuse_if_poisoned(*state.group);
  state.point_to_point ? wait_for_message(state) : wait_for_collective(state);
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
  if (!state_ || state_->error || !state_->c10d || state_->c10d->isCompleted()) return true;
  return state_->group->native == nullptr && state_->usual.expired() && comm::is_hopeless(*state_->group);
}

std::vector<at::Tensor> Work::result() {
  wait();
  return state_ ? state_->result : std::vector<at::Tensor>{};
}

}  // namespace lockstep
