#include "optim/fit.h"

#include <cstring>
#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "optim/kinds.h"
#include "optim/plain.h"
#include "optim/steps.h"

namespace lockstep::optim {

namespace {

// Not a multiple of a register: the last elements take another path.
constexpr int64_t kElements = 1003;
constexpr int kSteps = 4;

// The same numbers everywhere, without touching the generators of the user.
at::Tensor numbers(uint32_t seed) {
  auto tensor = at::empty({kElements}, at::kFloat);
  auto* values = tensor.data_ptr<float>();
  for (int64_t i = 0; i < kElements; ++i) {
    seed = seed * 1664525 + 1013904223;
    values[i] = static_cast<float>(static_cast<int32_t>(seed)) * 0x1p-31f;
  }
  return tensor;
}

// The learning rate of a first step may be 0, or too small to show a difference.
std::unique_ptr<torch::optim::OptimizerOptions> with_large_steps(const torch::optim::OptimizerOptions& of) {
  auto options = of.clone();
  with_kind_of(*options, [](auto, auto& known) { known.lr(0.1); });
  return options;
}

bool same_bits(Update update, const torch::optim::OptimizerOptions& options) {
  const auto start = numbers(1);
  const auto theirs = start.clone().set_requires_grad(true);
  auto ours = start.clone(), values = at::empty_like(start);
  const auto optimizer = plain_optimizer({torch::optim::OptimizerParamGroup({theirs})}, options);
  std::vector<at::Tensor> kept;
  float* states[kStates] = {};
  for (const auto& state : states_of(options)) {
    kept.push_back(at::full({kElements}, initial_value(options), at::kFloat));
    states[state.index] = kept.back().data_ptr<float>();
  }
  for (int step = 1; step <= kSteps; ++step) {
    const auto gradient = numbers(7 * step);
    theirs.mutable_grad() = gradient.clone();
    optimizer->step();
    values.copy_(gradient);
    update(step_of(options, step, std::nullopt), values.data_ptr<float>(), ours.data_ptr<float>(), states,
           kElements);
    ours.copy_(values);
    if (std::memcmp(ours.data_ptr(), theirs.data_ptr(), ours.nbytes()) != 0) return false;
  }
  return true;
}

}  // namespace

int operations_of(const torch::optim::OptimizerOptions& options) {
  const auto step = step_of(options, 2, std::nullopt);
  int bits = static_cast<int>(step.rule);
  for (const bool has :
       {step.decays, step.shrinks, step.has_momentum, step.nesterov, step.keeps_largest, step.centered}) {
    bits = bits * 2 + (has ? 1 : 0);
  }
  return bits;
}

Fit fit_of(const torch::optim::OptimizerOptions& of) {
  const auto rule = rule_of(of);
  const auto options = with_large_steps(of);
  // LibTorch fuses multiplications and additions where the CPU can.
  for (const bool fused : {true, false}) {
    const auto update = find_update(rule, fused);
    if (same_bits(update, *options)) return {update, true};
  }
  return {find_update(rule, true), false};
}

}  // namespace lockstep::optim
