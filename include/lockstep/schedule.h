// Learning-rate schedules.
//
// LibTorch 1.13 has StepLR only. Here are the usual schedules as functions of the step, and a Scheduler that
// applies them to an optimizer:
//
//   using namespace lockstep;
//   Scheduler scheduler(optimizer, schedules::sequential({schedules::linear(0.1, 1.0, 100),     // warm-up
//                                                         schedules::cosine_annealing(900)}, {100}));
//   …
//   optimizer.step();
//   scheduler.step();
//
// Each schedule returns the values of the class of the same name in Python's torch.optim.lr_scheduler. Python
// computes most of them from the previous rate, so rounding errors accumulate there; here they do not.
//
// Scheduler and ReduceLROnPlateau can be parts of a snapshot (lockstep/snapshot.h), as LibTorch's own
// schedulers can.
//
// Nothing in this header communicates.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include <torch/optim/optimizer.h>

namespace lockstep {

// The learning rate at a step, counted from 0, of a parameter group that was created with the rate `base`. It
// must depend on these two values only, because a snapshot stores nothing but the step. The program decides
// what a step is: a batch or an epoch.
using Schedule = std::function<double(int64_t step, double base)>;

// All throw UsageError for invalid arguments.
namespace schedules {

// base * factor(step).
Schedule lambda(std::function<double(int64_t step)> factor);
// base * factor for total_iters steps, then base.
Schedule constant(double factor = 1.0 / 3, int64_t total_iters = 5);
// From base * start_factor to base * end_factor in total_iters steps, e.g. as a warm-up.
Schedule linear(double start_factor = 1.0 / 3, double end_factor = 1.0, int64_t total_iters = 5);
// Multiplied by gamma every step_size steps.
Schedule step(int64_t step_size, double gamma = 0.1);
// Multiplied by gamma at each of these steps.
Schedule multi_step(std::vector<int64_t> milestones, double gamma = 0.1);
// Multiplied by gamma at every step.
Schedule exponential(double gamma);
// From base to 0 in total_iters steps.
Schedule polynomial(int64_t total_iters = 5, double power = 1.0);
// From base to eta_min in T_max steps, along half a cosine wave. It rises again after that, as in Python.
Schedule cosine_annealing(int64_t T_max, double eta_min = 0);
// From base to eta_min in T_0 steps, then again from base, each time in T_mult times as many steps.
Schedule cosine_annealing_warm_restarts(int64_t T_0, int64_t T_mult = 1, double eta_min = 0);

struct OneCycleOptions {
  double pct_start = 0.3;         // the fraction of the steps in which the rate rises
  bool linear = false;            // linear instead of cosine annealing
  double div_factor = 25;         // the initial rate is max_lr / div_factor
  double final_div_factor = 1e4;  // the final rate is the initial rate / final_div_factor
  bool three_phase = false;       // falls to the initial rate as fast as it rose, then to the final rate
};
// Rises to max_lr and falls again. Ignores the base. The last step is total_steps - 1; its rate then stays.
// Does not change the momentum (Python: cycle_momentum=False).
Schedule one_cycle(double max_lr, int64_t total_steps, OneCycleOptions options = {});

// The first schedule until the first milestone, the second until the next one, and so on; each counts its
// steps from 0. Needs one milestone fewer than schedules.
Schedule sequential(std::vector<Schedule> schedules, std::vector<int64_t> milestones);
// Applies all schedules at once: the rate of one is the base of the next.
Schedule chained(std::vector<Schedule> schedules);

// The usual schedule for large models: from base * start_factor to base in warmup_steps, then to eta_min at
// total_steps along half a cosine wave, then eta_min.
Schedule warmup_cosine(int64_t warmup_steps, int64_t total_steps, double eta_min = 0,
                       double start_factor = 0.01);

}  // namespace schedules

// Applies schedules to an optimizer, which must outlive it. All ranks must create one and make the same
// calls. Create it before Snapshots::resume(): it uses the current rates of the parameter groups as their
// bases.
class Scheduler {
 public:
  // Sets the rates of step 0. Takes one schedule for all groups, or one for each; UsageError for any other
  // number.
  Scheduler(torch::optim::Optimizer& optimizer, Schedule schedule);
  Scheduler(torch::optim::Optimizer& optimizer, std::vector<Schedule> schedules);

  // Sets the rates of the next step. Call it after optimizer.step(). Throws UsageError if parameter groups
  // have been added to the optimizer.
  void step();
  int64_t last_step() const { return step_; }
  // Sets the rates of this step, e.g. for a run that was started without a scheduler. UsageError if it is
  // negative.
  void set_last_step(int64_t step);
  // The current rates, one for each group.
  const std::vector<double>& get_last_lr() const { return last_lrs_; }

  struct State {
    int64_t last_step = 0;
    std::vector<double> base_lrs = {};
  };
  State state() const { return {step_, base_lrs_}; }
  // A state does not contain the schedules, which the program provides. Throws SnapshotError if the number of
  // parameter groups differs.
  void restore(const State& state);
  // Throws what restore() would throw. Changes nothing.
  void check(const State& state) const;

 private:
  void apply();

  torch::optim::Optimizer& optimizer_;
  std::vector<Schedule> schedules_;
  std::vector<double> base_lrs_, last_lrs_;
  int64_t step_ = 0;
};

struct PlateauOptions {
  bool maximize = false;    // a larger metric is better (Python: mode="max")
  double factor = 0.1;      // the rate is multiplied by this; below 1
  int64_t patience = 10;    // this many calls in a row may bring no improvement
  double threshold = 1e-4;  // the improvement that counts …
  bool absolute = false;    // … relative to the best metric, or absolute (Python: threshold_mode="abs")
  int64_t cooldown = 0;     // this many calls after a reduction are ignored
  double min_lr = 0;
  double eps = 1e-8;  // smaller changes of the rate are not made
};

// Reduces the learning rate when a metric stops improving, as torch.optim.lr_scheduler.ReduceLROnPlateau
// does. The optimizer must outlive it.
//
// All ranks must pass the same metric, or their learning rates diverge: pass lockstep::mean(loss), or the
// result of Average::all_reduce().
class ReduceLROnPlateau {
 public:
  explicit ReduceLROnPlateau(torch::optim::Optimizer& optimizer, PlateauOptions options = {});

  // Usually called once per epoch.
  void step(double metric);

  struct State {
    double best = std::numeric_limits<double>::infinity();  // -infinity with `maximize`
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
