#include "compat/scheduler.h"

#if __has_include(<torch/optim/schedulers/reduce_on_plateau_scheduler.h>)
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>
#define LOCKSTEP_HAS_PLATEAU 1
#else
#define LOCKSTEP_HAS_PLATEAU 0
#endif

namespace lockstep::compat {

namespace {

// A protected member can be named in a derived class.
struct Counter : torch::optim::LRScheduler {
  static constexpr unsigned torch::optim::LRScheduler::*kMember = &Counter::step_count_;
};

#if LOCKSTEP_HAS_PLATEAU
using Plateau = torch::optim::ReduceLROnPlateauScheduler;

// A private member can be named as an argument of an explicit instantiation, where access is not checked; the
// friend function that this defines returns it.
template <class Tag, auto Member>
struct Reveal {
  friend auto& member(Tag, Plateau& scheduler) { return scheduler.*Member; }
};
struct Best {
  friend auto& member(Best, Plateau&);
};
struct BadEpochs {
  friend auto& member(BadEpochs, Plateau&);
};
struct Cooldown {
  friend auto& member(Cooldown, Plateau&);
};
struct LastEpoch {
  friend auto& member(LastEpoch, Plateau&);
};
template struct Reveal<Best, &Plateau::best>;
template struct Reveal<BadEpochs, &Plateau::num_bad_epochs>;
template struct Reveal<Cooldown, &Plateau::cooldown_counter>;
template struct Reveal<LastEpoch, &Plateau::last_epoch>;
#endif

}  // namespace

unsigned step_count(torch::optim::LRScheduler& scheduler) { return scheduler.*Counter::kMember; }

void set_step_count(torch::optim::LRScheduler& scheduler, unsigned count) {
  scheduler.*Counter::kMember = count;
}

#if LOCKSTEP_HAS_PLATEAU
PlateauState plateau_state(Plateau& scheduler) {
  return {member(Best(), scheduler), member(BadEpochs(), scheduler), member(Cooldown(), scheduler),
          member(LastEpoch(), scheduler)};
}

void set_plateau_state(Plateau& scheduler, const PlateauState& state) {
  member(Best(), scheduler) = state.best;
  member(BadEpochs(), scheduler) = state.num_bad_epochs;
  member(Cooldown(), scheduler) = state.cooldown_counter;
  member(LastEpoch(), scheduler) = state.last_epoch;
}
#else
// This version of LibTorch has no such scheduler.
PlateauState plateau_state(torch::optim::ReduceLROnPlateauScheduler&) { return {}; }
void set_plateau_state(torch::optim::ReduceLROnPlateauScheduler&, const PlateauState&) {}
#endif

}  // namespace lockstep::compat
