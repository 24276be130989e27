#include <lockstep/work.h>

#include "comm/work_state.h"

namespace lockstep {

namespace {

using namespace std::chrono_literals;

// After this long a wait is slow enough to leave word of it in the store.
constexpr auto kSlowWait = 1s;

void wait_for_backend(Work::State& state) {
  // Our own backends know who is where; the others are helped by words in the store.
  if (!state.point_to_point && state.group->native == nullptr) {
    try {
      state.c10d->wait(kSlowWait);
      return;
    } catch (const std::exception&) {
      // Slow, or failed; or done by now, whatever the exception says. The wait below knows.
    }
    if (!state.c10d->isCompleted()) comm::report_waiting(*state.group, state.call);
  }
  state.c10d->wait();
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
