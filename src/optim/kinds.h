// The options of a parameter group and the state of a parameter, for each optimizer of LibTorch.
//
// A kind visits its options and its slots by name; capturing and restoring use the same list. A slot is one
// value in the state of a parameter: a tensor or the step counter. The last argument of a visit tells whether
// the optimizer needs the slot with these options. LBFGS has one state for all parameters, which
// lbfgs_state.h handles.
#pragma once

#include <type_traits>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace lockstep::optim {

struct SgdKind {
  static constexpr const char* kName = "SGD";
  using Optimizer = torch::optim::SGD;
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;

  static void visit_options(auto& options, auto&& visit) {
    visit("lr", options.lr());
    visit("momentum", options.momentum());
    visit("dampening", options.dampening());
    visit("weight_decay", options.weight_decay());
    visit("nesterov", options.nesterov());
  }
  static void visit_slots(auto& state, const Options&, auto&& visit) {
    visit("momentum_buffer", state.momentum_buffer(), true);
  }
};

template <class OptimizerType, class OptionsType, class StateType>
struct AdamLikeKind {
  using Optimizer = OptimizerType;
  using Options = OptionsType;
  using State = StateType;

  static void visit_options(auto& options, auto&& visit) {
    visit("lr", options.lr());
    visit("beta1", std::get<0>(options.betas()));
    visit("beta2", std::get<1>(options.betas()));
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("amsgrad", options.amsgrad());
  }
  static void visit_slots(auto& state, const Options& options, auto&& visit) {
    visit("step", state.step(), true);
    visit("exp_avg", state.exp_avg(), true);
    visit("exp_avg_sq", state.exp_avg_sq(), true);
    visit("max_exp_avg_sq", state.max_exp_avg_sq(), options.amsgrad());
  }
};

struct AdamKind : AdamLikeKind<torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamParamState> {
  static constexpr const char* kName = "Adam";
};

struct AdamWKind
    : AdamLikeKind<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState> {
  static constexpr const char* kName = "AdamW";
};

struct RmspropKind {
  static constexpr const char* kName = "RMSprop";
  using Optimizer = torch::optim::RMSprop;
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;

  static void visit_options(auto& options, auto&& visit) {
    visit("lr", options.lr());
    visit("alpha", options.alpha());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("momentum", options.momentum());
    visit("centered", options.centered());
  }
  static void visit_slots(auto& state, const Options& options, auto&& visit) {
    visit("step", state.step(), true);
    visit("square_avg", state.square_avg(), true);
    visit("momentum_buffer", state.momentum_buffer(), options.momentum() > 0);
    visit("grad_avg", state.grad_avg(), options.centered());
  }
};

struct AdagradKind {
  static constexpr const char* kName = "Adagrad";
  using Optimizer = torch::optim::Adagrad;
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;

  static void visit_options(auto& options, auto&& visit) {
    visit("lr", options.lr());
    visit("lr_decay", options.lr_decay());
    visit("weight_decay", options.weight_decay());
    visit("initial_accumulator_value", options.initial_accumulator_value());
    visit("eps", options.eps());
  }
  static void visit_slots(auto& state, const Options&, auto&& visit) {
    visit("step", state.step(), true);
    visit("sum", state.sum(), true);
  }
};

struct LbfgsKind {
  static constexpr const char* kName = "LBFGS";
  using Optimizer = torch::optim::LBFGS;
  using Options = torch::optim::LBFGSOptions;
  using State = torch::optim::LBFGSParamState;

  static void visit_options(auto& options, auto&& visit) {
    visit("lr", options.lr());
    visit("max_iter", options.max_iter());
    visit("max_eval", options.max_eval());
    visit("tolerance_grad", options.tolerance_grad());
    visit("tolerance_change", options.tolerance_change());
    visit("history_size", options.history_size());
    visit("line_search_fn", options.line_search_fn());
  }
};

// Calls `action` with the kind of these options, and the options as what they are. Returns false if there is
// none.
template <class Options, class Action>
bool with_kind_of(Options& options, Action&& action) {
  const auto try_kind = [&](auto kind) {
    using Own = typename decltype(kind)::Options;
    auto* const known = dynamic_cast<std::conditional_t<std::is_const_v<Options>, const Own, Own>*>(&options);
    if (known != nullptr) action(kind, *known);
    return known != nullptr;
  };
  return try_kind(SgdKind()) || try_kind(AdamKind()) || try_kind(AdamWKind()) || try_kind(RmspropKind()) ||
         try_kind(AdagradKind());
}

}  // namespace lockstep::optim
