// The hidden state of LibTorch's schedulers, which a snapshot needs.
#pragma once

#include <cstdint>

#include <torch/optim/schedulers/lr_scheduler.h>

namespace torch::optim {
class ReduceLROnPlateauScheduler;  // LibTorch 1.13 has none
}

namespace lockstep::compat {

// The number of times that step() was called.
unsigned step_count(torch::optim::LRScheduler& scheduler);
void set_step_count(torch::optim::LRScheduler& scheduler, unsigned count);

struct PlateauState {
  float best = 0;
  int num_bad_epochs = 0, cooldown_counter = 0, last_epoch = 0;
};
PlateauState plateau_state(torch::optim::ReduceLROnPlateauScheduler& scheduler);
void set_plateau_state(torch::optim::ReduceLROnPlateauScheduler& scheduler, const PlateauState& state);

}  // namespace lockstep::compat
