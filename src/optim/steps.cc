#include "optim/steps.h"

#include <cmath>
#include <fmt/format.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "optim/kinds.h"
#include "optim/plain.h"

namespace lockstep::optim {

namespace {

using torch::optim::OptimizerOptions;

template <class Result, class Visit>
Result of_options(const OptimizerOptions& options, Visit&& visit) {
  Result result{};
  if (with_kind_of(options, [&](auto, const auto& known) { result = visit(known); })) return result;
  throw UsageError(base::compose({.what = "these optimizer options cannot be sharded",
                                  .evidence = "supported: SGD, Adam, AdamW, Adagrad, RMSprop",
                                  .hint = "use LibTorch's optimizer with ddp.parameters()"}));
}

struct RuleOf {
  Rule operator()(const torch::optim::SGDOptions&) const { return Rule::Sgd; }
  Rule operator()(const torch::optim::AdamOptions&) const { return Rule::Adam; }
  Rule operator()(const torch::optim::AdamWOptions&) const { return Rule::Adam; }
  Rule operator()(const torch::optim::AdagradOptions&) const { return Rule::Adagrad; }
  Rule operator()(const torch::optim::RMSpropOptions&) const { return Rule::RmsProp; }
};

struct StatesOf {
  using Names = std::vector<StateName>;
  Names operator()(const torch::optim::SGDOptions& o) const {
    return o.momentum() != 0 ? Names{{0, "momentum_buffer"}} : Names{};
  }
  template <class Adam>
  Names of_adam(const Adam& o) const {
    Names names{{0, "exp_avg"}, {1, "exp_avg_sq"}};
    if (o.amsgrad()) names.push_back({2, "max_exp_avg_sq"});
    return names;
  }
  Names operator()(const torch::optim::AdamOptions& o) const { return of_adam(o); }
  Names operator()(const torch::optim::AdamWOptions& o) const { return of_adam(o); }
  Names operator()(const torch::optim::AdagradOptions&) const { return {{0, "sum"}}; }
  Names operator()(const torch::optim::RMSpropOptions& o) const {
    Names names{{0, "square_avg"}};
    if (o.momentum() > 0) names.push_back({1, "momentum_buffer"});
    if (o.centered()) names.push_back({2, "grad_avg"});
    return names;
  }
};

// LibTorch computes the numbers in double precision; its tensors of floats take them as floats.
struct StepOf {
  int64_t number;

  static float rounded(double value) { return static_cast<float>(value); }

  static Step with_decay(Rule rule, double weight_decay) {
    Step step{.rule = rule};
    step.decays = weight_decay != 0;
    step.decay = rounded(weight_decay);
    return step;
  }

  Step operator()(const torch::optim::SGDOptions& o) const {
    auto step = with_decay(Rule::Sgd, o.weight_decay());
    step.has_momentum = o.momentum() != 0;
    step.first = number == 1;
    step.nesterov = o.nesterov();
    step.momentum = rounded(o.momentum());
    step.undamped = rounded(1 - o.dampening());
    step.scale = rounded(-1 * o.lr());
    return step;
  }

  template <class Options>
  Step adam(const Options& o, Step step) const {
    const auto [beta1, beta2] = o.betas();
    const auto correction1 = 1 - std::pow(beta1, number);
    const auto correction2 = 1 - std::pow(beta2, number);
    step.keeps_largest = o.amsgrad();
    step.past1 = rounded(beta1);
    step.present1 = rounded(1 - beta1);
    step.past2 = rounded(beta2);
    step.present2 = rounded(1 - beta2);
    step.root_correction = rounded(std::sqrt(correction2));
    step.epsilon = rounded(o.eps());
    step.scale = rounded(-(o.lr() / correction1));
    return step;
  }
  Step operator()(const torch::optim::AdamOptions& o) const {
    return adam(o, with_decay(Rule::Adam, o.weight_decay()));
  }
  Step operator()(const torch::optim::AdamWOptions& o) const {
    Step step{.rule = Rule::Adam};
    step.shrinks = o.weight_decay() != 0;
    step.shrink = rounded(1 - o.lr() * o.weight_decay());
    return adam(o, step);
  }

  Step operator()(const torch::optim::AdagradOptions& o) const {
    auto step = with_decay(Rule::Adagrad, o.weight_decay());
    step.epsilon = rounded(o.eps());
    step.scale = rounded(-(o.lr() / (1 + static_cast<double>(number - 1) * o.lr_decay())));
    return step;
  }

  Step operator()(const torch::optim::RMSpropOptions& o) const {
    auto step = with_decay(Rule::RmsProp, o.weight_decay());
    step.has_momentum = o.momentum() > 0;
    step.centered = o.centered();
    step.momentum = rounded(o.momentum());
    step.past2 = rounded(o.alpha());
    step.present2 = rounded(1 - o.alpha());
    step.epsilon = rounded(o.eps());
    step.scale = rounded(-o.lr());
    return step;
  }
};

}  // namespace

const char* name_of(const OptimizerOptions& options) {
  const char* name = nullptr;
  with_kind_of(options, [&](auto kind, const auto&) { name = decltype(kind)::kName; });
  return name;
}

// With all groups at once: LibTorch's Adagrad has no states for groups that are added later.
std::unique_ptr<torch::optim::Optimizer> plain_optimizer(
    std::vector<torch::optim::OptimizerParamGroup> groups, const OptimizerOptions& options) {
  std::unique_ptr<torch::optim::Optimizer> made;
  with_kind_of(options, [&](auto kind, const auto& known) {
    made = std::make_unique<typename decltype(kind)::Optimizer>(std::move(groups), known);
  });
  if (!made) rule_of(options);  // throws
  return made;
}

double initial_value(const OptimizerOptions& options) {
  const auto* const adagrad = dynamic_cast<const torch::optim::AdagradOptions*>(&options);
  return adagrad != nullptr ? adagrad->initial_accumulator_value() : 0;
}

Rule rule_of(const OptimizerOptions& options) { return of_options<Rule>(options, RuleOf{}); }

std::vector<StateName> states_of(const OptimizerOptions& options) {
  return of_options<std::vector<StateName>>(options, StatesOf{});
}

Step step_of(const OptimizerOptions& options, int64_t number, std::optional<float> clip) {
  auto step = of_options<Step>(options, StepOf{number});
  step.clips = clip.has_value();
  step.clip = clip.value_or(1);
  return step;
}

}  // namespace lockstep::optim
