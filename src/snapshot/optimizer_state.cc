#include "snapshot/optimizer_state.h"

#include <fmt/format.h>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <type_traits>
#include <typeinfo>

#include <ATen/ATen.h>
#include <c10/util/Type.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "compat/optimizer.h"
#include "optim/kinds.h"
#include "snapshot/lbfgs_state.h"
#include "snapshot/optimizer_parts.h"

namespace lockstep::snapshot {

using nlohmann::json;
using namespace optim;

namespace {

// Calls `action` with the kind of the optimizer. Returns false if the kind is unknown.
template <class Action>
bool with_kind(const torch::optim::Optimizer& optimizer, Action&& action) {
  // Not dynamic_cast: a derived class may have additional state that would be lost.
  const auto& type = typeid(optimizer);
  const auto try_kind = [&](auto kind) {
    if (type != typeid(typename decltype(kind)::Optimizer)) return false;
    action(kind);
    return true;
  };
  return try_kind(SgdKind()) || try_kind(AdamKind()) || try_kind(AdamWKind()) || try_kind(RmspropKind()) ||
         try_kind(AdagradKind()) || try_kind(LbfgsKind());
}

template <class Kind>
constexpr bool kIsLbfgs = std::is_same_v<Kind, LbfgsKind>;

[[noreturn]] void throw_unknown(const torch::optim::Optimizer& optimizer) {
  throw UsageError(base::compose(
      {.what = fmt::format("snapshots do not know the optimizer {}", c10::demangle(typeid(optimizer).name())),
       .hint = "use torch::optim::SGD, Adam, AdamW, RMSprop, Adagrad or LBFGS; or leave it out of the "
               "snapshot, and save it with torch::save and load it with torch::load"}));
}

// Capturing

template <class Kind>
OptimizerState capture_kind(const torch::optim::Optimizer& optimizer, const ParameterNames& names) {
  OptimizerState captured;
  auto& about = captured.about;
  about = {{"kind", Kind::kName}, {"groups", json::array()}, {"steps", json::object()}};
  std::set<std::string> seen;
  for (size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    const auto& group = optimizer.param_groups()[i];
    const auto& options = options_of<const typename Kind::Options>(group);
    json saved = {{"options", options_to_json<Kind>(group)}, {"parameters", json::array()}};
    for (const auto& parameter : group.params()) {
      const auto& name = names.of(parameter, i);
      saved["parameters"].push_back(name);
      const auto found = optimizer.state().find(compat::state_key(parameter));
      if (found == optimizer.state().end() || !found->second || !seen.insert(name).second) continue;
      const auto& state = static_cast<const typename Kind::State&>(*found->second);
      Kind::visit_slots(state, options, [&](const char* slot, const auto& value, bool) {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
          if (!value.defined()) return;
          if (value.layout() != at::kStrided) {
            throw UsageError(base::compose(
                {.what = fmt::format(
                     "the optimizer's {} of '{}' is sparse, but a snapshot stores dense tensors only", slot,
                     name),
                 .hint = "train parameters with sparse gradients without momentum"}));
          }
          captured.tensors.emplace_back(fmt::format("{}/{}", name, slot), value);
        } else {
          about["steps"][name] = value;
        }
      });
    }
    about["groups"].push_back(std::move(saved));
  }
  return captured;
}

// Restoring

// The saved values of one parameter; read_state() removes those that it uses.
struct Saved {
  std::map<std::string, at::Tensor> slots;
  std::optional<int64_t> step;

  bool empty() const { return slots.empty() && !step; }
};

template <class Kind>
struct Fitting {
  at::Tensor parameter;
  typename Kind::Options options;  // of the parameter's group
  std::unique_ptr<typename Kind::State> state;
};

// The new state of the optimizer. Its tensors are still those of the snapshot.
template <class Kind>
struct Prepared {
  std::vector<typename Kind::Options> options;  // of each group
  std::vector<Fitting<Kind>> states;
};

std::map<std::string, Saved> by_parameter(const OptimizerState& state, const ParameterNames& names) {
  std::map<std::string, Saved> all;
  for (const auto& [full_name, tensor] : state.tensors) {
    const auto slash = full_name.rfind('/');
    if (slash == std::string::npos) throw_damaged(fmt::format("'{}' names no slot", full_name));
    auto& slots = all[names.canonical(full_name.substr(0, slash))].slots;
    if (!tensor.defined() || tensor.layout() != at::kStrided) {
      throw_damaged(fmt::format("'{}' is not a dense tensor", full_name));
    }
    if (!slots.emplace(full_name.substr(slash + 1), tensor).second) {
      throw_damaged(fmt::format("'{}' is there twice", full_name));
    }
  }
  for (const auto& [name, step] : state.about.at("steps").items()) {
    auto& saved = all[names.canonical(name)];
    if (!step.is_number_integer() || step.get<int64_t>() < 0)
      throw_damaged(fmt::format("the step of '{}' is {}", name, step.dump()));
    if (saved.step) throw_damaged(fmt::format("'{}' has two step counters", name));
    saved.step = step.get<int64_t>();
  }
  return all;
}

// A sharded optimizer keeps the state of narrow parameters in float.
bool fits(at::ScalarType state, at::ScalarType parameter) {
  return state == parameter || (is_narrow(parameter) && state == at::kFloat);
}

template <class Kind>
std::unique_ptr<typename Kind::State> read_state(const std::string& name, const at::Tensor& parameter,
                                                 const typename Kind::Options& options, Saved saved) {
  auto state = std::make_unique<typename Kind::State>();
  Kind::visit_slots(*state, options, [&](const char* slot, auto& value, bool needed) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
      const auto found = saved.slots.find(slot);
      if (found != saved.slots.end()) {
        value = found->second;
        if (value.sizes() != parameter.sizes() || !fits(value.scalar_type(), parameter.scalar_type())) {
          throw_other(Kind::kName, fmt::format("the snapshot's {} of '{}' is {}, and the parameter is {}",
                                               slot, name, describe(value), describe(parameter)));
        }
        saved.slots.erase(found);
      } else if (needed) {
        throw_damaged(fmt::format("'{}' has no {}", name, slot));
      }
    } else {
      if (!saved.step) throw_damaged(fmt::format("'{}' has no step counter", name));
      value = *std::exchange(saved.step, std::nullopt);
    }
  });
  if (saved.empty()) return state;
  throw_damaged(fmt::format("'{}' has {}, which {} does not keep", name,
                            saved.step ? "a step counter" : saved.slots.begin()->first, Kind::kName));
}

template <class Kind>
Prepared<Kind> prepare(const torch::optim::Optimizer& optimizer, const OptimizerState& state,
                       const ParameterNames& names) {
  const auto& groups = optimizer.param_groups();
  const auto& saved_groups = state.about.at("groups");
  const auto saved_kind = state.about.at("kind").get<std::string>();
  if (saved_kind != Kind::kName) throw_other(Kind::kName, fmt::format("it is that of {}", saved_kind));
  if (saved_groups.size() != groups.size()) {
    throw_other(Kind::kName, fmt::format("{} parameter groups were saved, and the optimizer has {}",
                                         saved_groups.size(), groups.size()));
  }
  auto saved = by_parameter(state, names);
  Prepared<Kind> prepared;
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto& params = groups[i].params();
    std::vector<std::string> here;
    for (const auto& parameter : params) here.push_back(names.of(parameter, i));
    check_group(Kind::kName, names.canonical_all(saved_groups.at(i).at("parameters")), here, i);
    const auto& options = prepared.options.emplace_back(read_options<Kind>(
        saved_groups.at(i).at("options"), options_of<const typename Kind::Options>(groups[i]), i));
    for (size_t j = 0; j < params.size(); ++j) {
      const auto found = saved.find(here[j]);
      if (found == saved.end()) continue;
      prepared.states.push_back(
          {params[j], options, read_state<Kind>(here[j], params[j], options, std::move(found->second))});
      saved.erase(found);
    }
  }
  if (!saved.empty()) throw_damaged(fmt::format("'{}' has state but is in no group", saved.begin()->first));
  return prepared;
}

template <class Kind>
Prepared<Kind> prepare_well_formed(const torch::optim::Optimizer& optimizer, const OptimizerState& state,
                                   const ParameterNames& names) {
  try {
    return prepare<Kind>(optimizer, state, names);
  } catch (const json::exception& error) {
    throw_damaged(error.what());
  }
}

// The new state of the optimizer, with its own copies of the tensors.
template <class Kind>
struct Replacement {
  compat::OptimizerStates states;
  std::vector<typename Kind::Options> options;
};

template <class Kind>
Replacement<Kind> copied(Prepared<Kind> prepared) {
  Replacement<Kind> copy{{}, std::move(prepared.options)};
  for (auto& [parameter, options, state] : prepared.states) {
    Kind::visit_slots(*state, options, [&, &like = parameter](const char*, auto& value, bool) {
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
        if (value.defined())
          value = at::empty_like(like, like.options(), at::MemoryFormat::Preserve).copy_(value);
      }
    });
    copy.states[compat::state_key(parameter)] = std::move(state);
  }
  return copy;
}

template <class Kind>
void replace(torch::optim::Optimizer& optimizer, Replacement<Kind>& with) {
  optimizer.state() = std::move(with.states);
  for (size_t i = 0; i < with.options.size(); ++i) {
    // Assigns to the options instead of replacing them, because the program may hold a reference.
    static_cast<typename Kind::Options&>(optimizer.param_groups()[i].options()) = with.options[i];
  }
}

}  // namespace

OptimizerState capture_optimizer(const torch::optim::Optimizer& optimizer, const NamedTensors& names) {
  OptimizerState captured;
  const bool known = with_kind(optimizer, [&](auto kind) {
    using Kind = decltype(kind);
    if constexpr (kIsLbfgs<Kind>) {
      captured = capture_lbfgs(optimizer, ParameterNames(names));
    } else {
      captured = capture_kind<Kind>(optimizer, ParameterNames(names));
    }
  });
  if (!known) throw_unknown(optimizer);
  return captured;
}

std::function<void()> prepare_optimizer(torch::optim::Optimizer& optimizer, const OptimizerState& state,
                                        const NamedTensors& names) {
  const at::NoGradGuard no_grad;
  std::function<void()> change;
  const bool known = with_kind(optimizer, [&](auto kind) {
    using Kind = decltype(kind);
    if constexpr (kIsLbfgs<Kind>) {
      change = prepare_lbfgs(optimizer, state, ParameterNames(names));
    } else {
      auto replacement = std::make_shared<Replacement<Kind>>(
          copied<Kind>(prepare_well_formed<Kind>(optimizer, state, ParameterNames(names))));
      change = [&optimizer, replacement] { replace<Kind>(optimizer, *replacement); };
    }
  });
  if (!known) throw_unknown(optimizer);
  return change;
}

std::vector<json> options_of_groups(const torch::optim::Optimizer& optimizer) {
  std::vector<json> all;
  with_kind(optimizer, [&](auto kind) {
    for (const auto& group : optimizer.param_groups()) all.push_back(options_to_json<decltype(kind)>(group));
  });
  return all;
}

}  // namespace lockstep::snapshot
