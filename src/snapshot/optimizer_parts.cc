#include "snapshot/optimizer_parts.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <iterator>

#include "base/error_text.h"
#include "base/printable.h"
#include "snapshot/numbers.h"

namespace lockstep::snapshot {

using nlohmann::json;

namespace {

std::string quote_names(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  const auto shown = std::min(names.size(), kShown);
  auto text = fmt::format("'{}'", fmt::join(names.begin(), names.begin() + shown, "', '"));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

}  // namespace

ParameterNames::ParameterNames(const NamedTensors& names) {
  for (const auto& [name, tensor] : names) {
    if (!tensor.defined()) continue;
    first_.emplace(tensor.unsafeGetTensorImpl(), name);
    const auto [known, is_new] = parameters_.emplace(name, tensor);
    if (is_new || known->second.is_same(tensor)) continue;
    throw UsageError(base::compose({.what = fmt::format("two parameters are named '{}'", name),
                                    .hint = "give the models different names"}));
  }
}

const std::string& ParameterNames::of(const at::Tensor& parameter, size_t group) const {
  const auto name = first_.find(parameter.unsafeGetTensorImpl());
  if (name != first_.end()) return name->second;
  throw UsageError(base::compose(
      {.what = "a parameter of the optimizer is in no model of the snapshot",
       .where = fmt::format("group {}, {} [{}]", group, c10::toString(parameter.scalar_type()),
                            fmt::join(parameter.sizes(), ", ")),
       .hint = "register it in the module (register_parameter), or add the module that holds it to the "
               "snapshot; a module moved or converted after the optimizer was made holds other tensors"}));
}

std::string ParameterNames::canonical(const std::string& name) const {
  const auto parameter = parameters_.find(name);
  return parameter == parameters_.end() ? name : first_.at(parameter->second.unsafeGetTensorImpl());
}

std::vector<std::string> ParameterNames::canonical_all(const json& names) const {
  std::vector<std::string> all;
  for (const auto& name : names) all.push_back(canonical(name.get<std::string>()));
  return all;
}

[[noreturn]] void throw_other(const std::string& kind, const std::string& evidence) {
  throw SnapshotError(base::compose(
      {.what = fmt::format("the snapshot's optimizer state does not fit this {} optimizer", kind),
       .evidence = base::printable(evidence),
       .hint = "make the optimizer as it was when the snapshot was written: the same kind, groups and "
               "parameters; or start with a fresh one by leaving it out of resume()"}));
}

[[noreturn]] void throw_damaged(const std::string& evidence) {
  throw SnapshotError(base::compose({.what = "the snapshot's optimizer state is damaged",
                                     .evidence = base::printable(evidence),
                                     .hint = "resume from another snapshot"}));
}

std::string describe(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

json value_to_json(bool value) { return value; }
json value_to_json(int64_t value) { return value; }
json value_to_json(const std::string& value) { return value; }
json value_to_json(double value) { return number_to_json(value); }

void value_from_json(const json& saved, bool& value) { value = saved.get<bool>(); }
void value_from_json(const json& saved, std::string& value) { value = saved.get<std::string>(); }
void value_from_json(const json& saved, int64_t& value) {
  if (!saved.is_number_integer()) throw_damaged(fmt::format("{} is not a whole number", saved.dump()));
  value = saved.get<int64_t>();
}
void value_from_json(const json& saved, double& value) {
  const auto number = number_from_json(saved);
  if (!number) throw_damaged(fmt::format("{} is not a number", saved.dump()));
  value = *number;
}

void check_group(const char* kind, std::vector<std::string> there, std::vector<std::string> here,
                 size_t group) {
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

}  // namespace lockstep::snapshot
