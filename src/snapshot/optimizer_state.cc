#include "snapshot/optimizer_state.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <typeinfo>
#include <unordered_map>

#include <ATen/ATen.h>
#include <c10/util/Type.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/printable.h"
#include "compat/optimizer.h"
#include "snapshot/optimizer_kinds.h"

namespace lockstep::snapshot {

using nlohmann::json;

namespace {

template <class Action>
auto with_kind(const torch::optim::Optimizer& optimizer, Action&& action) {
  // The type itself, not one derived from it: that may keep more than we know of.
  const auto& type = typeid(optimizer);
  if (type == typeid(SgdKind::Optimizer)) return action(SgdKind());
  if (type == typeid(AdamKind::Optimizer)) return action(AdamKind());
  if (type == typeid(AdamWKind::Optimizer)) return action(AdamWKind());
  if (type == typeid(RmspropKind::Optimizer)) return action(RmspropKind());
  if (type == typeid(AdagradKind::Optimizer)) return action(AdagradKind());
  throw UsageError(base::compose(
      {.what = fmt::format("snapshots do not know the optimizer {}", c10::demangle(type.name())),
       .hint =
           "use torch::optim::SGD, Adam, AdamW, RMSprop or Adagrad; or leave it out of the snapshot, keep "
           "it with torch::save and torch::load, and snapshot the rest"}));
}

// A parameter by its name, and its first name by the parameter.
class Names {
 public:
  explicit Names(const NamedTensors& names) {
    for (const auto& [name, tensor] : names) {
      if (!tensor.defined()) continue;
      first_.emplace(tensor.unsafeGetTensorImpl(), name);
      const auto [known, is_new] = parameters_.emplace(name, tensor);
      if (is_new || known->second.is_same(tensor)) continue;
      throw UsageError(base::compose({.what = fmt::format("two parameters are named '{}'", name),
                                      .hint = "give the models names that differ"}));
    }
  }

  const std::string& of(const at::Tensor& parameter, size_t group) const {
    const auto name = first_.find(parameter.unsafeGetTensorImpl());
    if (name != first_.end()) return name->second;
    throw UsageError(base::compose(
        {.what = "a parameter of the optimizer is in no model of the snapshot",
         .where = fmt::format("group {}, {} [{}]", group, c10::toString(parameter.scalar_type()),
                              fmt::join(parameter.sizes(), ", ")),
         .hint =
             "register it in the module (register_parameter), or give the module that holds it to the "
             "snapshot too; a module moved or converted after the optimizer was made holds other tensors"}));
  }

  // The first name of the parameter that has this one; an unknown name stays as it is.
  std::string canonical(const std::string& name) const {
    const auto parameter = parameters_.find(name);
    return parameter == parameters_.end() ? name : first_.at(parameter->second.unsafeGetTensorImpl());
  }

 private:
  std::unordered_map<const void*, std::string> first_;
  std::unordered_map<std::string, at::Tensor> parameters_;
};

[[noreturn]] void throw_other(const std::string& kind, const std::string& evidence) {
  throw SnapshotError(base::compose(
      {.what = fmt::format("the snapshot's optimizer state does not fit this {} optimizer", kind),
       .evidence = base::printable(evidence),
       .hint = "make the optimizer as it was when the snapshot was written: the same kind, groups and "
               "parameters; or begin with a fresh one by leaving it out of resume()"}));
}

[[noreturn]] void throw_damaged(const std::string& evidence) {
  throw SnapshotError(base::compose({.what = "the snapshot's optimizer state is damaged",
                                     .evidence = base::printable(evidence),
                                     .hint = "resume from another snapshot"}));
}

std::string describe(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

std::string quote_names(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  const auto shown = std::min(names.size(), kShown);
  auto text = fmt::format("'{}'", fmt::join(names.begin(), names.begin() + shown, "', '"));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

// Option values

json to_json(bool value) { return value; }
json to_json(double value) {
  if (std::isfinite(value)) return value;
  return fmt::format("{:#018x}", std::bit_cast<uint64_t>(value));
}

void from_json(const json& saved, bool& value) { value = saved.get<bool>(); }
void from_json(const json& saved, double& value) {
  if (!saved.is_string()) {
    value = saved.get<double>();
    return;
  }
  const auto text = saved.get<std::string>();
  uint64_t bits = 0;
  const auto* end = text.data() + text.size();
  if (!text.starts_with("0x") || std::from_chars(text.data() + 2, end, bits, 16).ptr != end) {
    throw_damaged(fmt::format("'{}' is no number", text));
  }
  value = std::bit_cast<double>(bits);
}

template <class Options>
Options& options_of(auto& group) {
  auto* options = dynamic_cast<Options*>(&group.options());
  if (options != nullptr) return *options;
  throw UsageError("a parameter group of the optimizer holds the options of another optimizer");
}

// Capturing

template <class Kind>
OptimizerState capture(const torch::optim::Optimizer& optimizer, const Names& names) {
  OptimizerState captured;
  auto& about = captured.about;
  about = {{"kind", Kind::kName}, {"groups", json::array()}, {"steps", json::object()}};
  std::set<std::string> seen;
  for (size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    const auto& group = optimizer.param_groups()[i];
    const auto& options = options_of<const typename Kind::Options>(group);
    json saved = {{"options", json::object()}, {"parameters", json::array()}};
    Kind::visit_options(
        options, [&](const char* option, const auto& value) { saved["options"][option] = to_json(value); });
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
                     "the optimizer's {} of '{}' is sparse, and a snapshot holds dense tensors", slot, name),
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

// What the snapshot has for one parameter, until it is taken.
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

// What the optimizer is to hold. The tensors are still the snapshot's.
template <class Kind>
struct Prepared {
  std::vector<typename Kind::Options> options;  // of each group
  std::vector<Fitting<Kind>> states;
};

std::map<std::string, Saved> by_parameter(const OptimizerState& state, const Names& names) {
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

template <class Kind>
typename Kind::Options read_options(const json& saved, typename Kind::Options options, size_t group) {
  size_t known = 0;
  Kind::visit_options(options, [&](const char* option, auto& value) {
    if (!saved.contains(option)) throw_damaged(fmt::format("group {} has no option '{}'", group, option));
    from_json(saved.at(option), value);
    ++known;
  });
  if (saved.size() == known) return options;
  throw_other(Kind::kName, fmt::format("group {} has the options {}, of which {} are known here", group,
                                       saved.dump(), known));
}

void check_group(const char* kind, const json& saved, std::vector<std::string> here, size_t group,
                 const Names& names) {
  std::vector<std::string> there;
  for (const auto& name : saved.at("parameters")) there.push_back(names.canonical(name.get<std::string>()));
  std::sort(here.begin(), here.end());
  std::sort(there.begin(), there.end());
  if (here == there) return;
  std::vector<std::string> only_here, only_there, differences;
  std::set_difference(here.begin(), here.end(), there.begin(), there.end(), std::back_inserter(only_here));
  std::set_difference(there.begin(), there.end(), here.begin(), here.end(), std::back_inserter(only_there));
  if (!only_there.empty()) differences.push_back("only the snapshot has " + quote_names(only_there));
  if (!only_here.empty()) differences.push_back("only the optimizer has " + quote_names(only_here));
  throw_other(kind, fmt::format("in group {}, {} parameters were saved and the optimizer has {}; {}", group,
                                there.size(), here.size(), fmt::join(differences, "; ")));
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
        if (value.sizes() != parameter.sizes() || value.scalar_type() != parameter.scalar_type()) {
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
                       const Names& names) {
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
    check_group(Kind::kName, saved_groups.at(i), here, i, names);
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
                                   const Names& names) {
  try {
    return prepare<Kind>(optimizer, state, names);
  } catch (const json::exception& error) {
    throw_damaged(error.what());
  }
}

// What the optimizer is to hold, in memory of its own.
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
    // Assigned, not replaced: the program may hold a reference to the options.
    static_cast<typename Kind::Options&>(optimizer.param_groups()[i].options()) = with.options[i];
  }
}

}  // namespace

OptimizerState capture_optimizer(const torch::optim::Optimizer& optimizer, const NamedTensors& names) {
  return with_kind(optimizer, [&](auto kind) { return capture<decltype(kind)>(optimizer, Names(names)); });
}

std::function<void()> prepare_optimizer(torch::optim::Optimizer& optimizer, const OptimizerState& state,
                                        const NamedTensors& names) {
  const at::NoGradGuard no_grad;
  return with_kind(optimizer, [&](auto kind) -> std::function<void()> {
    using Kind = decltype(kind);
    auto replacement = std::make_shared<Replacement<Kind>>(
        copied<Kind>(prepare_well_formed<Kind>(optimizer, state, Names(names))));
    return [&optimizer, replacement] { replace<Kind>(optimizer, *replacement); };
  });
}

}  // namespace lockstep::snapshot
