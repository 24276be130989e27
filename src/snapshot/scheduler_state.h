// Stores and restores the counters of learning-rate schedulers.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include <lockstep/snapshot.h>

namespace lockstep::snapshot {

// {"kind": "Scheduler", "last_step": 100, "base_lrs": [0.1]}, {"kind": "torch::optim::StepLR", "step_count":
// 5}, {"kind": "ReduceLROnPlateau", "best": 0.3, "num_bad_epochs": 2, …}
nlohmann::json capture_scheduler(const AnyScheduler& scheduler);

// Checks that the state belongs to this scheduler, and returns a function that restores it. Nothing changes
// until that function is called; it does not throw. Throws SnapshotError for the state of another kind of
// scheduler.
std::function<void()> prepare_scheduler(const AnyScheduler& scheduler, const nlohmann::json& saved);

}  // namespace lockstep::snapshot
