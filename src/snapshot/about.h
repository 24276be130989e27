// The description of the run that a snapshot stores beside its tensors: Document::about, in JSON.
//
// Another program may have written it, so readers validate everything and throw DamagedError for what they do
// not expect.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/sampler.h>
#include <lockstep/snapshot.h>

#include "base/error_text.h"
#include "base/printable.h"
#include "snapshot/stored_file.h"

namespace lockstep::snapshot {

// Adds the position, world size and time of the run that is being saved.
void describe_run(nlohmann::json& about, const Position& position, int world_size);

Position position_of(const nlohmann::json& about);
int world_size_of(const nlohmann::json& about);
std::chrono::system_clock::time_point saved_of(const nlohmann::json& about);
// The names and kinds of the optimizers.
std::vector<std::pair<std::string, std::string>> optimizers_in(const nlohmann::json& about);

// The names of the schedulers, each with its kind and counters: "torch::optim::StepLR, step_count 5".
std::vector<std::pair<std::string, std::string>> schedulers_in(const nlohmann::json& about);

nlohmann::json to_json(const SamplerState& state);
SamplerState sampler_from(const nlohmann::json& state);

[[noreturn]] void throw_out_of_range(const char* name, const nlohmann::json& number);

// Reads an integer. Throws if the type cannot hold it: JSON numbers may have any size and a fraction.
template <class Whole>
Whole whole_at(const nlohmann::json& object, const char* name) {
  const auto& number = object.at(name);
  const bool fits = number.is_number_unsigned()
                        ? std::in_range<Whole>(number.get<uint64_t>())
                        : number.is_number_integer() && std::in_range<Whole>(number.get<int64_t>());
  if (!fits) throw_out_of_range(name, number);
  return number.get<Whole>();
}

// Returns read(). Converts errors of the JSON library to DamagedError.
template <class Read>
auto understood(const Read& read) {
  try {
    return read();
  } catch (const nlohmann::json::exception& error) {
    throw DamagedError(
        base::compose({.what = "the snapshot does not describe a training run as lockstep does",
                       .evidence = base::printable(error.what()),
                       .hint = "use lockstep snapshot import for files of other programs"}));
  }
}

}  // namespace lockstep::snapshot
