// Learning rates that change while a run goes on.
//
// LibTorch has StepLR alone in 1.13. Here are the usual ones as functions of the step, which a Scheduler
// applies to an optimizer:
//
//   using namespace lockstep;
//   Scheduler scheduler(optimizer, schedules::sequential({schedules::linear(0.1, 1.0, 100),     // warm-up
//                                                         schedules::cosine_annealing(900)}, {100}));
//   …
//   optimizer.step();
//   scheduler.step();
//
// The values are those of the class of that name in Python's torch.optim.lr_scheduler, which computes most of
// them from the rate before: there rounding errors add up, and here they do not.
//
// A Scheduler and a ReduceLROnPlateau are parts of a snapshot (lockstep/snapshot.h), as LibTorch's own
// schedulers are.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include <torch/optim/optimizer.h>

namespace lockstep {

// The learning rate at a step, counted from 0, of a parameter group whose optimizer was made with `base`.
// A function of the two and of nothing else, so that resuming needs no more than the step. A step is what the
// program calls step() after: a batch or an epoch.
using Schedule = std::function<double(int64_t step, double base)>;

// A UsageError for arguments that cannot be right.
namespace schedules {

// base times what `factor` returns for the step.
Schedule lambda(std::function<double(int64_t step)> factor);
// base times `factor` for total_iters steps, and base from then on.
Schedule constant(double factor = 1.0 / 3, int64_t total_iters = 5);
// From base times start_factor to base times end_factor, in total_iters steps: a warm-up.
Schedule linear(double start_factor = 1.0 / 3, double end_factor = 1.0, int64_t total_iters = 5);
// Times gamma every step_size steps.
Schedule step(int64_t step_size, double gamma = 0.1);
// Times gamma at each of these steps.
Schedule multi_step(std::vector<int64_t> milestones, double gamma = 0.1);
// Times gamma at every step.
Schedule exponential(double gamma);
// From base to 0 in total_iters steps.
Schedule polynomial(int64_t total_iters = 5, double power = 1.0);
// From base to eta_min in T_max steps, in half a wave; as in Python, it rises again after that.
Schedule cosine_annealing(int64_t T_max, double eta_min = 0);
// From base to eta_min in T_0 steps, and again from the beginning, each time in T_mult times as many.
Schedule cosine_annealing_warm_restarts(int64_t T_0, int64_t T_mult = 1, double eta_min = 0);

struct OneCycleOptions {
  double pct_start = 0.3;         // the share of the steps in which the rate rises
  bool linear = false;            // straight lines instead of waves
  double div_factor = 25;         // begins with max_lr / div_factor …
  double final_div_factor = 1e4;  // … and ends with that / final_div_factor
  bool three_phase = false;       // falls as long as it rose, and then to the end
};
// Up to max_lr and down again. The base is not looked at. The last step is total_steps - 1, and its rate
// stays. Momentum stays as it is (in Python: cycle_momentum=False).
Schedule one_cycle(double max_lr, int64_t total_steps, OneCycleOptions options = {});

// The first until the first milestone, the next from there until the next one; each counts from 0. One
// milestone less than schedules.
Schedule sequential(std::vector<Schedule> schedules, std::vector<int64_t> milestones);
// All at once: what one gives is the base of the next.
Schedule chained(std::vector<Schedule> schedules);

// What large models are usually trained with: up from base times start_factor in warmup_steps, then down to
// eta_min until total_steps in half a wave, and eta_min from then on.
Schedule warmup_cosine(int64_t warmup_steps, int64_t total_steps, double eta_min = 0,
                       double start_factor = 0.01);

}  // namespace schedules

// Applies schedules to an optimizer, which must live as long. All ranks make one and make the same calls. To
// be made before Snapshots::resume(): it takes the rates that the parameter groups have then for their bases.
class Scheduler {
 public:
  // Sets the rates of step 0. One schedule for all groups, or one for each.
  Scheduler(torch::optim::Optimizer& optimizer, Schedule schedule);
  Scheduler(torch::optim::Optimizer& optimizer, std::vector<Schedule> schedules);

  // After optimizer.step(): sets the rates of the next step.
  void step();
  int64_t last_step() const { return step_; }
  // Sets the rates of that step: for a run that was begun without a scheduler.
  void set_last_step(int64_t step);
  // The rates that it set, one for each group.
  const std::vector<double>& get_last_lr() const { return last_lrs_; }

  struct State {
    int64_t last_step = 0;
    std::vector<double> base_lrs = {};
  };
  State state() const { return {step_, base_lrs_}; }
  // The schedules themselves are the program's and are not in a state. SnapshotError if the optimizer has
  // another number of groups.
  void restore(const State& state);
  // Throws what restore() would, and changes nothing.
  void check(const State& state) const;

 private:
  void apply();

  torch::optim::Optimizer& optimizer_;
  std::vector<Schedule> schedules_;
  std::vector<double> base_lrs_, last_lrs_;
  int64_t step_ = 0;
};

struct PlateauOptions {
  bool maximize = false;    // the metric is better the larger it is (in Python: mode="max")
  double factor = 0.1;      // what the rate is multiplied with
  int64_t patience = 10;    // so many calls in a row may be no better than the best
  double threshold = 1e-4;  // by how much a metric must be better to count …
  bool absolute = false;    // … as a share of the best, or as it is (threshold_mode="abs")
  int64_t cooldown = 0;     // so many calls after a reduction do not count
  double min_lr = 0;
  double eps = 1e-8;  // changes that are no larger are not made
};

// Reduces the learning rate when a metric no longer gets better, as torch.optim.lr_scheduler's.
//
// Its decision must be the same on all ranks, so feed it what is: plateau.step(lockstep::mean(loss)), or an
// Average's all_reduce().
class ReduceLROnPlateau {
 public:
  explicit ReduceLROnPlateau(torch::optim::Optimizer& optimizer, PlateauOptions options = {});

  // To be called once per epoch, usually.
  void step(double metric);

  struct State {
    double best = std::numeric_limits<double>::infinity();  // with `maximize`: minus infinity
    int64_t num_bad_epochs = 0;
    int64_t cooldown_counter = 0;
    int64_t last_epoch = 0;
  };
  const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  bool is_better(double metric) const;
  void reduce();

  torch::optim::Optimizer& optimizer_;
  PlateauOptions options_;
  State state_;
};

}  // namespace lockstep
