#include "snapshot/lbfgs_state.h"

#include <deque>
#include <map>
#include <memory>

#include <ATen/ATen.h>
#include <c10/core/ScalarType.h>

#include "compat/optimizer.h"
#include "optim/kinds.h"

namespace lockstep::snapshot {

using namespace optim;

using nlohmann::json;
using LbfgsState = LbfgsKind::State;

namespace {

constexpr const char* kCounters = "lbfgs";

void visit_counters(auto& state, auto&& visit) {
  visit("func_evals", state.func_evals());
  visit("n_iter", state.n_iter());
  visit("t", state.t());
  visit("prev_loss", state.prev_loss());
}

// Single tensors. `vector`: has one element for each element of all parameters; otherwise it is a scalar.
void visit_tensors(auto& state, auto&& visit) {
  visit("d", state.d(), /*vector=*/true);
  visit("prev_flat_grad", state.prev_flat_grad(), true);
  visit("H_diag", state.H_diag(), false);
}

// Lists with one tensor per remembered iteration; a snapshot stores each list as one stacked tensor.
void visit_histories(auto& state, auto&& visit) {
  visit("old_dirs", state.old_dirs(), /*vector=*/true);
  visit("old_stps", state.old_stps(), true);
  visit("ro", state.ro(), false);
}

// LBFGS does not support several groups, and has no state without parameters.
const std::vector<at::Tensor>& parameters_in(const torch::optim::Optimizer& optimizer) {
  return optimizer.param_groups().at(0).params();
}

const LbfgsState* state_in(const torch::optim::Optimizer& optimizer) {
  const auto& parameters = parameters_in(optimizer);
  if (parameters.empty()) return nullptr;
  const auto found = optimizer.state().find(compat::state_key(parameters.front()));
  return found == optimizer.state().end() ? nullptr : static_cast<const LbfgsState*>(found->second.get());
}

std::vector<std::string> names_in(const torch::optim::Optimizer& optimizer, const ParameterNames& names) {
  std::vector<std::string> all;
  for (const auto& parameter : parameters_in(optimizer)) all.push_back(names.of(parameter, 0));
  return all;
}

// The tensors of a snapshot, which must match this optimizer.
class SavedTensors {
 public:
  SavedTensors(const OptimizerState& state, const std::vector<at::Tensor>& parameters) {
    for (const auto& [name, tensor] : state.tensors) slots_[name.substr(name.rfind('/') + 1)] = tensor;
    for (const auto& parameter : parameters) elements_ += parameter.numel();
    if (parameters.empty()) return;
    auto type = parameters.front().scalar_type();
    for (const auto& parameter : parameters) type = c10::promoteTypes(type, parameter.scalar_type());
    like_ = parameters.front().options().dtype(type).requires_grad(false);
  }

  // Returns a copy and removes the tensor from the list; undefined if there is none.
  at::Tensor take(const char* slot, std::vector<int64_t> sizes) {
    const auto found = slots_.find(slot);
    if (found == slots_.end()) return {};
    const auto saved = found->second;
    slots_.erase(found);
    const auto expected = at::empty(sizes, like_);
    if (saved.sizes() != expected.sizes() || saved.scalar_type() != expected.scalar_type()) {
      throw_other(LbfgsKind::kName, fmt::format("the snapshot's {} is {}, and that of these parameters is {}",
                                                slot, describe(saved), describe(expected)));
    }
    return expected.copy_(saved);
  }
  std::vector<int64_t> sizes(bool vector) const {
    return vector ? std::vector<int64_t>{elements_} : std::vector<int64_t>{};
  }
  int64_t rows(const char* slot) const {
    const auto found = slots_.find(slot);
    return found == slots_.end() || found->second.dim() == 0 ? 0 : found->second.size(0);
  }
  void check_all_taken() const {
    if (slots_.empty()) return;
    throw_damaged(fmt::format("it has {}, which LBFGS does not keep", slots_.begin()->first));
  }

 private:
  std::map<std::string, at::Tensor> slots_;
  int64_t elements_ = 0;
  at::TensorOptions like_;
};

std::unique_ptr<LbfgsState> read_lbfgs_state(const json& counters, SavedTensors saved) {
  auto state = std::make_unique<LbfgsState>();
  visit_counters(*state, [&](const char* name, auto& value) { value_from_json(counters.at(name), value); });
  visit_tensors(*state, [&](const char* slot, at::Tensor& value, bool vector) {
    value = saved.take(slot, saved.sizes(vector));
  });
  visit_histories(*state, [&](const char* slot, std::deque<at::Tensor>& history, bool vector) {
    auto sizes = saved.sizes(vector);
    sizes.insert(sizes.begin(), saved.rows(slot));
    const auto stacked = saved.take(slot, sizes);
    if (!stacked.defined()) return;
    for (const auto& one : stacked.unbind(0)) history.push_back(one.clone());
  });
  saved.check_all_taken();
  if (state->old_dirs().size() != state->ro().size() || state->old_stps().size() != state->ro().size()) {
    throw_damaged("its histories have different lengths");
  }
  if (state->n_iter() > 0 &&
      !(state->d().defined() && state->H_diag().defined() && state->prev_flat_grad().defined())) {
    throw_damaged("it has made iterations, but lacks their direction, gradient or scale");
  }
  return state;
}

struct LbfgsReplacement {
  LbfgsKind::Options options;
  compat::OptimizerStates states;
};

LbfgsReplacement read_lbfgs(const torch::optim::Optimizer& optimizer, const OptimizerState& state,
                            const ParameterNames& names) {
  const auto saved_kind = state.about.at("kind").get<std::string>();
  if (saved_kind != LbfgsKind::kName)
    throw_other(LbfgsKind::kName, fmt::format("it is that of {}", saved_kind));
  if (state.about.at("groups").size() != 1) throw_damaged("LBFGS has one parameter group");
  const auto& group = state.about.at("groups").at(0);
  const auto here = names_in(optimizer, names);
  const auto there = names.canonical_all(group.at("parameters"));
  check_group(LbfgsKind::kName, there, here, 0);
  if (here != there) {
    throw_other(LbfgsKind::kName,
                "the order of the parameters differs, and the vectors of LBFGS depend on it");
  }
  const auto& parameters = parameters_in(optimizer);
  LbfgsReplacement replacement{
      read_options<LbfgsKind>(group.at("options"),
                              options_of<const LbfgsKind::Options>(optimizer.param_groups()[0]), 0),
      {}};
  SavedTensors tensors(state, parameters);
  if (!state.about.contains(kCounters)) {
    tensors.check_all_taken();
  } else if (parameters.empty()) {
    throw_damaged("it has a state, but no parameters");
  } else {
    replacement.states[compat::state_key(parameters.front())] =
        read_lbfgs_state(state.about.at(kCounters), std::move(tensors));
  }
  return replacement;
}

}  // namespace

OptimizerState capture_lbfgs(const torch::optim::Optimizer& optimizer, const ParameterNames& names) {
  const auto parameters = names_in(optimizer, names);
  OptimizerState captured;
  captured.about = {
      {"kind", LbfgsKind::kName},
      {"groups",
       {{{"options", options_to_json<LbfgsKind>(optimizer.param_groups()[0])}, {"parameters", parameters}}}}};
  const auto* state = state_in(optimizer);
  if (!state) return captured;
  visit_counters(*state, [&](const char* name, const auto& value) {
    captured.about[kCounters][name] = value_to_json(value);
  });
  const auto add = [&](const char* slot, at::Tensor tensor) {
    captured.tensors.emplace_back(fmt::format("{}/{}", parameters.front(), slot), std::move(tensor));
  };
  visit_tensors(*state, [&](const char* slot, const at::Tensor& value, bool) {
    if (value.defined()) add(slot, value);
  });
  visit_histories(*state, [&](const char* slot, const std::deque<at::Tensor>& history, bool) {
    if (!history.empty()) add(slot, at::stack(std::vector<at::Tensor>(history.begin(), history.end())));
  });
  return captured;
}

std::function<void()> prepare_lbfgs(torch::optim::Optimizer& optimizer, const OptimizerState& state,
                                    const ParameterNames& names) {
  auto replacement = std::make_shared<LbfgsReplacement>();
  try {
    *replacement = read_lbfgs(optimizer, state, names);
  } catch (const json::exception& error) {
    throw_damaged(error.what());
  }
  return [&optimizer, replacement] {
    optimizer.state() = std::move(replacement->states);
    static_cast<LbfgsKind::Options&>(optimizer.param_groups()[0].options()) = replacement->options;
  };
}

}  // namespace lockstep::snapshot
