#include <lockstep/train.h>

#include "train/group_of.h"

namespace lockstep {

double scaled_lr(double base, const ProcessGroup& group) { return base * group.world_size(); }

double scaled_lr(double base, const std::shared_ptr<ProcessGroup>& group) {
  return scaled_lr(base, train::group_of(group, "scaled_lr"));
}

}  // namespace lockstep
