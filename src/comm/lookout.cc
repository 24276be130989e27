#include "comm/lookout.h"

#include <algorithm>
#include <utility>

namespace lockstep::comm {

namespace {

using namespace std::chrono_literals;
using base::Deadline;

// A wait that takes longer than this is published in the store.
constexpr auto kSlowWait = 1s;
constexpr auto kCheckInterval = 100ms;
// The store serves all ranks that wait, so each asks less often the longer it waits.
constexpr std::chrono::milliseconds kLongestInterval = 5s;

}  // namespace

Lookout::Lookout(ProcessGroup::Impl& group, StoreControl* control, uint64_t number, const Request& call)
    : group_(group),
      control_(control),
      number_(number),
      call_(call),
      end_(call.timeout > 0ms ? std::optional(Deadline::in(call.timeout)) : std::nullopt),
      slow_(Deadline::in(kSlowWait)),
      look_(Deadline::in(0ms)),
      look_into_control_(Deadline::in(0ms)),
      between_(kCheckInterval) {}

bool Lookout::hopeless() {
  if (elsewhere_ || timed_out_ || is_hopeless(group_)) return true;
  if (end_ && end_->expired()) return timed_out_ = true;
  if (!look_.expired()) return false;
  look_ = Deadline::in(kCheckInterval);
  if (slow_.expired() && !std::exchange(reported_, true)) {
    report_waiting(group_, numbered(number_, describe(call_)));
  }
  if (control_ == nullptr || number_ == 0 || !look_into_control_.expired()) return false;
  look_into_control_ = Deadline::in(between_);
  if (++looks_ % group_.world_size == 0) between_ = std::min(2 * between_, kLongestInterval);
  if (const auto found = control_->find_elsewhere(number_)) {
    elsewhere_ = {found->rank, number_, describe(call_), found->label};
  }
  return elsewhere_.has_value();
}

void Lookout::report() const {
  if (elsewhere_) throw *elsewhere_;
  if (timed_out_) throw CallTimeout(end_->budget());
}

}  // namespace lockstep::comm
