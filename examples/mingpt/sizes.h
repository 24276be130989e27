// The named model sizes, and a model's dimensions as values in a snapshot.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <lockstep/error.h>

#include "model.h"

namespace mingpt {

struct Size {
  const char* name;
  int64_t layers, heads, width;
};

// As in minGPT.
inline constexpr Size kSizes[] = {
    {"nano", 3, 3, 48},         {"micro", 4, 4, 128},  {"mini", 6, 6, 192},
    {"gopher-44m", 8, 16, 512}, {"gpt2", 12, 12, 768},
};

inline std::vector<std::string> size_names() {
  std::vector<std::string> names;
  for (const auto& size : kSizes) names.emplace_back(size.name);
  return names;
}

inline Config config_of(std::string_view name, int64_t context, double dropout) {
  for (const auto& size : kSizes) {
    if (name != size.name) continue;
    return {.layers = size.layers,
            .heads = size.heads,
            .width = size.width,
            .context = context,
            .dropout = dropout};
  }
  throw lockstep::UsageError("no model is called \"" + std::string(name) + "\"");
}

using Values = std::map<std::string, std::variant<int64_t, double, std::string>>;

inline Values values_of(const Config& config) {
  return {{"layers", config.layers},
          {"heads", config.heads},
          {"width", config.width},
          {"vocabulary", config.vocabulary},
          {"context", config.context}};
}

// For inference, so without dropout.
inline Config config_of(const Values& values) {
  const auto value = [&](const char* name) {
    const auto found = values.find(name);
    const auto* number = found == values.end() ? nullptr : std::get_if<int64_t>(&found->second);
    if (number && *number > 0) return *number;
    throw lockstep::UsageError("the snapshot does not contain the model's " + std::string(name) +
                               "\nhint: pass a directory that mingpt_train has written");
  };
  return {.layers = value("layers"),
          .heads = value("heads"),
          .width = value("width"),
          .vocabulary = value("vocabulary"),
          .context = value("context")};
}

}  // namespace mingpt
