#include "comm/work.h"

#include <utility>

#include "comm/failure.h"
#include "comm/group.h"

namespace lockstep {

void Work::wait() {
  if (!state_) return;
  auto& state = *state_;
  if (state.error) std::rethrow_exception(state.error);
  if (std::exchange(state.waited, true)) return;
  try {
    try {
      state.complete();
    } catch (...) {
      if (!state.group) throw;
      comm::throw_failure(*state.group);
    }
    if (state.finish) state.finish();
  } catch (...) {
    state.error = std::current_exception();
    throw;
  }
  state.finish = nullptr;
  state.request.keep.clear();
  state.request.storage.reset();
}

bool Work::is_done() const { return !state_ || state_->waited || state_->is_done(); }

std::vector<at::Tensor> Work::result() {
  wait();
  return state_ ? state_->result : std::vector<at::Tensor>{};
}

namespace comm {

void run(ProcessGroup::Impl& group, Request& request) {
  refuse_if_failed(group);
  try {
    group.transport->run(request);
  } catch (...) {
    throw_failure(group);
  }
}

void run(ProcessGroup::Impl& group, Prepared& call) {
  run(group, call.request);
  if (call.results && call.results->finish) call.results->finish();
}

Work start(const std::shared_ptr<ProcessGroup::Impl>& group, Prepared&& call) {
  refuse_if_failed(*group);
  try {
    auto state = group->transport->start(std::move(call.request));
    state->group = group;
    if (call.results) {
      state->finish = std::move(call.results->finish);
      state->result = std::move(call.results->made);
    }
    return Work(std::move(state));
  } catch (...) {
    throw_failure(*group);
  }
}

}  // namespace comm

}  // namespace lockstep
