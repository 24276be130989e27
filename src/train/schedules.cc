// The schedules of Python's torch.optim.lr_scheduler, in closed form.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <numbers>
#include <string>
#include <utility>

#include <lockstep/error.h>
#include <lockstep/schedule.h>

#include "base/error_text.h"

namespace lockstep::schedules {

namespace {

using std::numbers::pi;

void require(bool right, const char* schedule, const std::string& evidence, const char* hint) {
  if (right) return;
  throw UsageError(base::compose({.what = fmt::format("schedules::{} was given invalid arguments", schedule),
                                  .evidence = evidence,
                                  .hint = hint}));
}

void require_steps(int64_t steps, const char* schedule, const char* argument) {
  require(steps > 0, schedule, fmt::format("{} is {}", argument, steps), "pass a number of steps above 0");
}

void require_callable(const std::vector<Schedule>& schedules, const char* schedule) {
  const bool all = std::all_of(schedules.begin(), schedules.end(), [](const auto& one) { return bool(one); });
  require(all, schedule, "one of the schedules is empty", "pass functions of the step and the base");
}

double ratio(int64_t steps, int64_t of) { return static_cast<double>(steps) / static_cast<double>(of); }

// From `from` to `to` as `fraction` increases from 0 to 1.
double wave(double from, double to, double fraction) {
  return to + (from - to) * (1 + std::cos(pi * fraction)) / 2;
}
double line(double from, double to, double fraction) { return from + (to - from) * fraction; }

double power_of(double gamma, int64_t times) { return std::pow(gamma, static_cast<double>(times)); }

// A phase of one_cycle: it lasts until the step `end`, included.
struct Phase {
  double end;
  double from, to;
};

}  // namespace

Schedule lambda(std::function<double(int64_t)> factor) {
  require(bool(factor), "lambda", "the function is empty", "pass a function of the step");
  return [factor = std::move(factor)](int64_t step, double base) { return base * factor(step); };
}

Schedule constant(double factor, int64_t total_iters) {
  return [=](int64_t step, double base) { return step < total_iters ? base * factor : base; };
}

Schedule linear(double start_factor, double end_factor, int64_t total_iters) {
  require_steps(total_iters, "linear", "total_iters");
  return [=](int64_t step, double base) {
    return base * line(start_factor, end_factor, ratio(std::min(step, total_iters), total_iters));
  };
}

Schedule step(int64_t step_size, double gamma) {
  require_steps(step_size, "step", "step_size");
  return [=](int64_t at, double base) { return base * power_of(gamma, at / step_size); };
}

Schedule multi_step(std::vector<int64_t> milestones, double gamma) {
  std::sort(milestones.begin(), milestones.end());
  return [milestones = std::move(milestones), gamma](int64_t step, double base) {
    const auto reached = std::upper_bound(milestones.begin(), milestones.end(), step) - milestones.begin();
    return base * power_of(gamma, reached);
  };
}

Schedule exponential(double gamma) {
  return [=](int64_t step, double base) { return base * power_of(gamma, step); };
}

Schedule polynomial(int64_t total_iters, double power) {
  require_steps(total_iters, "polynomial", "total_iters");
  return [=](int64_t step, double base) {
    return base * std::pow(1 - ratio(std::min(step, total_iters), total_iters), power);
  };
}

Schedule cosine_annealing(int64_t T_max, double eta_min) {
  require_steps(T_max, "cosine_annealing", "T_max");
  return [=](int64_t step, double base) { return wave(base, eta_min, ratio(step, T_max)); };
}

Schedule cosine_annealing_warm_restarts(int64_t T_0, int64_t T_mult, double eta_min) {
  require_steps(T_0, "cosine_annealing_warm_restarts", "T_0");
  require_steps(T_mult, "cosine_annealing_warm_restarts", "T_mult");
  return [=](int64_t step, double base) {
    int64_t length = T_0;
    if (T_mult == 1) return wave(base, eta_min, ratio(step % T_0, T_0));
    while (step >= length) {
      step -= length;
      length *= T_mult;
    }
    return wave(base, eta_min, ratio(step, length));
  };
}

Schedule one_cycle(double max_lr, int64_t total_steps, OneCycleOptions options) {
  require_steps(total_steps, "one_cycle", "total_steps");
  require(options.pct_start >= 0 && options.pct_start <= 1, "one_cycle",
          fmt::format("pct_start is {}", options.pct_start), "pass a fraction between 0 and 1");
  const double initial = max_lr / options.div_factor, last = initial / options.final_div_factor;
  const double steps = static_cast<double>(total_steps), rising = options.pct_start * steps;
  std::vector<Phase> phases{{rising - 1, initial, max_lr}};
  if (options.three_phase) phases.push_back({2 * rising - 2, max_lr, initial});
  phases.push_back({steps - 1, options.three_phase ? initial : max_lr, last});
  return [=](int64_t step, double) {
    const auto at = static_cast<double>(std::min(step, total_steps - 1));
    double begin = 0;
    auto phase = phases.begin();
    for (; phase + 1 != phases.end() && at > phase->end; ++phase) begin = phase->end;
    // A cycle of one step has a phase of length 0.
    const double fraction = phase->end > begin ? (at - begin) / (phase->end - begin) : 1;
    return (options.linear ? line : wave)(phase->from, phase->to, fraction);
  };
}

Schedule sequential(std::vector<Schedule> schedules, std::vector<int64_t> milestones) {
  require(milestones.size() + 1 == schedules.size(), "sequential",
          fmt::format("{} schedules and {} milestones", schedules.size(), milestones.size()),
          "pass one milestone fewer than schedules: the step at which each schedule after the first begins");
  require(std::is_sorted(milestones.begin(), milestones.end()), "sequential",
          "the milestones are not in order", "count them all from step 0");
  require_callable(schedules, "sequential");
  return [=](int64_t step, double base) {
    const auto reached = std::upper_bound(milestones.begin(), milestones.end(), step) - milestones.begin();
    const auto index = static_cast<size_t>(reached);
    return schedules[index](index == 0 ? step : step - milestones[index - 1], base);
  };
}

Schedule chained(std::vector<Schedule> schedules) {
  require_callable(schedules, "chained");
  return [schedules = std::move(schedules)](int64_t step, double base) {
    for (const auto& schedule : schedules) base = schedule(step, base);
    return base;
  };
}

Schedule warmup_cosine(int64_t warmup_steps, int64_t total_steps, double eta_min, double start_factor) {
  require(warmup_steps > 0 && warmup_steps < total_steps, "warmup_cosine",
          fmt::format("{} of {} steps are for the warm-up", warmup_steps, total_steps),
          "pass a number of warm-up steps above 0 and below the total");
  const auto both = sequential(
      {linear(start_factor, 1, warmup_steps), cosine_annealing(total_steps - warmup_steps, eta_min)},
      {warmup_steps});
  return [=](int64_t step, double base) { return both(std::min(step, total_steps), base); };
}

}  // namespace lockstep::schedules
