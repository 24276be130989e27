// Checks the other ranks while a slow call is in progress over a backend that does not notice when they fail.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "base/deadline.h"
#include "comm/diagnose.h"
#include "comm/group.h"
#include "comm/request.h"
#include "comm/store_control.h"

namespace lockstep::comm {

class Lookout {
 public:
  // `number`: of the collective; 0 for a message. `call` must outlive this object.
  // `control`: the control channel of the same group, in which a rank that does not make the same calls may
  // be waiting; null if there is none.
  Lookout(ProcessGroup::Impl& group, StoreControl* control, uint64_t number, const Request& call);

  // Whether the call can no longer complete, or has exceeded its own timeout. Also publishes a slow wait. May
  // be called by another thread, but never by two at once; does not throw.
  bool hopeless();
  // Throws what hopeless() found, if that is more specific than the error of the call itself.
  void report() const;

 private:
  ProcessGroup::Impl& group_;
  StoreControl* const control_;
  const uint64_t number_;
  const Request& call_;
  const std::optional<base::Deadline> end_;  // of the call, if it has its own timeout
  const base::Deadline slow_;
  base::Deadline look_;
  base::Deadline look_into_control_;
  std::chrono::milliseconds between_;
  int looks_ = 0;
  bool reported_ = false;
  bool timed_out_ = false;
  std::optional<Disagreement> elsewhere_;
};

}  // namespace lockstep::comm
