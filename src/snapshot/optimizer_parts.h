// Common to the states of all kinds of optimizers: the names of parameters, the options of groups, and the
// errors.
#pragma once

#include <cstdint>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <torch/optim/optimizer.h>

#include <lockstep/error.h>

#include "snapshot/named_tensors.h"

namespace lockstep::snapshot {

// Maps names to parameters, and parameters to their first names.
class ParameterNames {
 public:
  explicit ParameterNames(const NamedTensors& names);

  const std::string& of(const at::Tensor& parameter, size_t group) const;
  // The first name of the parameter with this name; an unknown name is returned unchanged.
  std::string canonical(const std::string& name) const;
  std::vector<std::string> canonical_all(const nlohmann::json& names) const;

 private:
  std::unordered_map<const void*, std::string> first_;
  std::unordered_map<std::string, at::Tensor> parameters_;
};

[[noreturn]] void throw_other(const std::string& kind, const std::string& evidence);
[[noreturn]] void throw_damaged(const std::string& evidence);

std::string describe(const at::Tensor& tensor);

// The values of options; for numbers see numbers.h.
nlohmann::json value_to_json(bool value);
nlohmann::json value_to_json(int64_t value);
nlohmann::json value_to_json(double value);
nlohmann::json value_to_json(const std::string& value);
template <class Optional>
requires requires(Optional value) { value.has_value(); }
nlohmann::json value_to_json(const Optional& value) {
  return value ? value_to_json(*value) : nlohmann::json();
}

void value_from_json(const nlohmann::json& saved, bool& value);
void value_from_json(const nlohmann::json& saved, int64_t& value);
void value_from_json(const nlohmann::json& saved, double& value);
void value_from_json(const nlohmann::json& saved, std::string& value);
template <class Optional>
requires requires(Optional value) { value.has_value(); }
void value_from_json(const nlohmann::json& saved, Optional& value) {
  if (saved.is_null()) {
    value.reset();
  } else {
    value.emplace();
    value_from_json(saved, *value);
  }
}

template <class Options>
Options& options_of(auto& group) {
  auto* options = dynamic_cast<Options*>(&group.options());
  if (options != nullptr) return *options;
  throw UsageError("a parameter group of the optimizer holds the options of another optimizer");
}

template <class Kind>
nlohmann::json options_to_json(const torch::optim::OptimizerParamGroup& group) {
  auto saved = nlohmann::json::object();
  Kind::visit_options(options_of<const typename Kind::Options>(group),
                      [&](const char* option, const auto& value) { saved[option] = value_to_json(value); });
  return saved;
}

// Returns `options` with the saved values.
template <class Kind>
typename Kind::Options read_options(const nlohmann::json& saved, typename Kind::Options options,
                                    size_t group) {
  size_t known = 0;
  Kind::visit_options(options, [&](const char* option, auto& value) {
    if (!saved.contains(option)) throw_damaged(fmt::format("group {} has no option '{}'", group, option));
    value_from_json(saved.at(option), value);
    ++known;
  });
  if (saved.size() == known) return options;
  throw_other(Kind::kName, fmt::format("group {} has the options {}, of which {} are known here", group,
                                       saved.dump(), known));
}

// Throws unless both lists contain the same parameters, in any order.
void check_group(const char* kind, std::vector<std::string> there, std::vector<std::string> here,
                 size_t group);

}  // namespace lockstep::snapshot
