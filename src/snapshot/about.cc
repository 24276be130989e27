#include "snapshot/about.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include <torch/version.h>

#include "snapshot/numbers.h"

namespace lockstep::snapshot {

using nlohmann::json;

namespace {

json to_json(const Position& position) {
  auto values = json::object();
  for (const auto& [name, value] : position.values) {
    if (const auto* number = std::get_if<double>(&value)) {
      values[name] = number_to_json(*number);
    } else if (const auto* whole = std::get_if<int64_t>(&value)) {
      values[name] = *whole;
    } else {
      values[name] = std::get<std::string>(value);
    }
  }
  return {{"epoch", position.epoch}, {"step", position.step}, {"values", values}};
}

[[noreturn]] void throw_value(std::string_view name, const json& value, const char* expected) {
  throw DamagedError(base::compose(
      {.what = "the snapshot does not describe a training run as lockstep does",
       .evidence = fmt::format("its {} is {}, which is not {}", base::quote(name),
                               base::printable(value.dump(-1, ' ', true).substr(0, 100)), expected),
       .hint = "use another snapshot"}));
}

}  // namespace

void throw_out_of_range(const char* name, const json& number) {
  throw_value(name, number, "a whole number in range");
}

void describe_run(json& about, const Position& position, int world_size) {
  using namespace std::chrono;
  about["position"] = to_json(position);
  about["world_size"] = world_size;
  about["torch"] = TORCH_VERSION;
  about["saved_ms"] = duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
}

Position position_of(const json& about) {
  return understood([&] {
    const auto& saved = about.at("position");
    Position position{.epoch = whole_at<int64_t>(saved, "epoch"), .step = whole_at<int64_t>(saved, "step")};
    for (const auto& [name, value] : saved.at("values").items()) {
      if (value.is_string()) {
        position.values[name] = value.get<std::string>();
      } else if (value.is_number_integer()) {
        position.values[name] = value.get<int64_t>();
      } else if (const auto number = number_from_json(value)) {
        position.values[name] = *number;
      } else {
        throw_value(name, value, "a number or a text");
      }
    }
    return position;
  });
}

int world_size_of(const json& about) {
  return understood([&] { return whole_at<int>(about, "world_size"); });
}

std::chrono::system_clock::time_point saved_of(const json& about) {
  using namespace std::chrono;
  return understood([&] {
    const milliseconds since_1970(whole_at<int64_t>(about, "saved_ms"));
    // The clock counts in smaller units, so its range is smaller.
    constexpr auto kFirst = ceil<milliseconds>(system_clock::time_point::min().time_since_epoch());
    constexpr auto kLast = floor<milliseconds>(system_clock::time_point::max().time_since_epoch());
    return system_clock::time_point(std::clamp(since_1970, kFirst, kLast));
  });
}

std::vector<std::pair<std::string, std::string>> optimizers_in(const json& about) {
  return understood([&] {
    std::vector<std::pair<std::string, std::string>> all;
    if (!about.contains("optimizers")) return all;
    for (const auto& [name, optimizer] : about["optimizers"].items()) {
      all.emplace_back(name, optimizer.at("kind").get<std::string>());
    }
    return all;
  });
}

std::vector<std::pair<std::string, std::string>> schedulers_in(const json& about) {
  return understood([&] {
    std::vector<std::pair<std::string, std::string>> all;
    if (!about.contains("schedulers")) return all;
    for (const auto& [name, scheduler] : about["schedulers"].items()) {
      auto text = scheduler.at("kind").get<std::string>();
      for (const auto& [counter, value] : scheduler.items()) {
        if (counter != "kind") text += fmt::format(", {} {}", counter, readable(value));
      }
      all.emplace_back(name, std::move(text));
    }
    return all;
  });
}

json to_json(const SamplerState& state) {
  return {{"epoch", state.epoch},
          {"consumed", state.consumed},
          {"dataset_size", state.dataset_size},
          {"seed", state.seed},
          {"shuffle", state.shuffle}};
}

SamplerState sampler_from(const json& state) {
  return understood([&] {
    return SamplerState{.epoch = whole_at<int64_t>(state, "epoch"),
                        .consumed = whole_at<uint64_t>(state, "consumed"),
                        .dataset_size = whole_at<uint64_t>(state, "dataset_size"),
                        .seed = whole_at<uint64_t>(state, "seed"),
                        .shuffle = state.at("shuffle").get<bool>()};
  });
}

}  // namespace lockstep::snapshot
