// Reads the output of schedules.py and compares it with lockstep's schedules, rate by rate.
//
// Python computes a rate from the previous one, so its rounding errors grow with the steps; lockstep uses the
// closed form. The rates must agree to 1e-12 of the base after 60 steps. A wrong step or formula would differ
// by 1e-2.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <sstream>
#include <string>

#include <lockstep/lockstep.h>

namespace {

using namespace lockstep::schedules;
using lockstep::Schedule;

constexpr double kTolerance = 1e-12;

Schedule schedule_for(const std::string& setting) {
  std::istringstream words(setting);
  std::string name;
  words >> name;
  const auto number = [&] {
    double value = std::nan("");
    words >> value;
    return value;
  };
  const auto whole = [&] {
    int64_t value = -1;
    words >> value;
    return value;
  };
  if (name == "linear") {
    const double start = number(), end = number();
    return linear(start, end, whole());
  }
  if (name == "constant") {
    const double factor = number();
    return constant(factor, whole());
  }
  if (name == "step") {
    const auto size = whole();
    return step(size, number());
  }
  if (name == "multi_step") {
    const auto a = whole(), b = whole(), c = whole();
    return multi_step({c, a, b}, number());
  }
  if (name == "exponential") return exponential(number());
  if (name == "polynomial") {
    const auto total = whole();
    return polynomial(total, number());
  }
  if (name == "cosine_annealing") {
    const auto t_max = whole();
    return cosine_annealing(t_max, number());
  }
  if (name == "cosine_annealing_warm_restarts") {
    const auto t_0 = whole(), t_mult = whole();
    return cosine_annealing_warm_restarts(t_0, t_mult, number());
  }
  if (name == "one_cycle") {
    const double max_lr = number();
    const auto total = whole();
    OneCycleOptions options;
    options.pct_start = number();
    options.linear = whole() == 1;
    options.div_factor = number();
    options.final_div_factor = number();
    options.three_phase = whole() == 1;
    return one_cycle(max_lr, total, options);
  }
  if (name == "lambda") return lambda([](int64_t at) { return 1 / (1 + static_cast<double>(at)); });
  if (name == "warmup_then_cosine") return warmup_cosine(10, 50, 1e-3, 0.1);
  if (name == "three_in_a_row")
    return sequential({constant(0.1, 100), exponential(0.9), step(4, 0.5)}, {6, 21});
  if (name == "two_at_once") return chained({linear(0.1, 1.0, 10), exponential(0.9)});
  return {};
}

double metric(int64_t step) {  // the same in schedules.py
  return static_cast<double>(step * 7 % 11 + 5) / static_cast<double>(std::min<int64_t>(step, 20) + 1);
}

// Sets the rate of the next step in the optimizer.
std::function<void(int64_t step)> mover_for(const std::string& setting, torch::optim::Optimizer& optimizer) {
  if (setting.starts_with("plateau ")) {
    lockstep::PlateauOptions options{
        .factor = 0.5, .patience = 2, .threshold = 0.05, .cooldown = 1, .min_lr = 1e-3};
    std::istringstream(setting.substr(8)) >> options.maximize >> options.absolute;
    return [plateau = lockstep::ReduceLROnPlateau(optimizer, options)](int64_t step) mutable {
      plateau.step(metric(step));
    };
  }
  const auto schedule = schedule_for(setting);
  if (!schedule) return {};
  return [scheduler = lockstep::Scheduler(optimizer, schedule)](int64_t) mutable { scheduler.step(); };
}

// The largest error, relative to the largest rate; infinite for an unknown setting.
double error_of(const std::string& setting, const std::string& expected) {
  std::istringstream numbers(expected);
  double base = 0, rate = 0, greatest = 0, error = 0;
  numbers >> base;
  torch::optim::SGD optimizer(std::vector<at::Tensor>{torch::zeros({1}, at::requires_grad())}, base);
  const auto move = mover_for(setting, optimizer);
  if (!move) return std::numeric_limits<double>::infinity();
  for (int64_t step = 0; numbers >> rate; ++step) {
    greatest = std::max(greatest, std::abs(rate));
    error = std::max(error, std::abs(optimizer.param_groups()[0].options().get_lr() - rate));
    move(step);
  }
  return error / greatest;
}

}  // namespace

int main() {
  size_t compared = 0, wrong = 0, expected_lines = 0;
  double worst = 0;
  for (std::string line; std::getline(std::cin, line);) {
    const auto colon = line.find(": ");
    if (colon == std::string::npos) {
      expected_lines = std::stoul(line);
      continue;
    }
    ++compared;
    const double error = error_of(line.substr(0, colon), line.substr(colon + 2));
    worst = std::max(worst, error);
    if (error <= kTolerance) continue;
    ++wrong;
    std::cout << "off by " << error << ": " << line << '\n';
  }
  std::cout << compared << " schedules compared, " << wrong << " differ; the greatest error is " << worst
            << '\n';
  if (compared == 0 || compared != expected_lines) {
    std::cout << "wrong: the input is incomplete\n";
    return 1;
  }
  return wrong == 0 ? 0 : 1;
}
