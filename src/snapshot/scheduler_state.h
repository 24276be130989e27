// The counters of learning-rate schedulers.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include <lockstep/snapshot.h>

namespace lockstep::snapshot {

// {"kind": "Scheduler", "last_step": 100, "base_lrs": [0.1]}, {"kind": "torch::optim::StepLR", "step_count":
// 5}, {"kind": "ReduceLROnPlateau", "best": 0.3, "num_bad_epochs": 2, …}
nlohmann::json capture_scheduler(const AnyScheduler& scheduler);

// Checks that the state is one of this scheduler, and returns what makes the scheduler hold it: until that is
// called nothing has changed, and it does not throw. Throws SnapshotError for a state of another kind.
std::function<void()> prepare_scheduler(const AnyScheduler& scheduler, const nlohmann::json& saved);

}  // namespace lockstep::snapshot
