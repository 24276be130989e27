#include "run.h"

#include <algorithm>
#include <fmt/format.h>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace demo {
namespace {

using nlohmann::json;

constexpr double kUndisturbed = 0.9;  // the least share of CPU time of a thread that has a core to itself

// JSON has no NaN: a loss that is not a number is written as null.
double number_of(const json& from) {
  return from.is_null() ? std::numeric_limits<double>::quiet_NaN() : from.get<double>();
}

Bucket bucket_of(const json& from) {
  return {.bytes = from.at("bytes"),
          .parameters = from.at("parameters"),
          .ready = from.at("ready"),
          .launched = from.at("launched"),
          .finished = from.at("finished")};
}

Run run_of(const json& from) {
  Run run{.command = from.at("command"),
          .backend = from.at("backend"),
          .libtorch = from.at("libtorch"),
          .snapshot = from.at("snapshot"),
          .world_size = from.at("world_size"),
          .threads = from.at("threads"),
          .parameters = from.at("parameters"),
          .batch = from.at("batch"),
          .samples = from.at("samples"),
          .cpu_seconds = from.at("cpu_seconds"),
          .total_communication = from.at("stats").at("total_communication"),
          .total_exposed = from.at("stats").at("total_exposed"),
          .replicas = from.at("replicas")};
  for (const auto& loss : from.at("losses")) run.losses.push_back(number_of(loss));
  for (const auto& epoch : from.at("epochs")) {
    run.epochs.push_back({.seconds = epoch.at("seconds"),
                          .loss = number_of(epoch.at("loss")),
                          .accuracy = epoch.at("accuracy")});
  }
  const auto& pass = from.at("typical_pass");
  run.typical_pass = {.backward = pass.at("backward"),
                      .communication = pass.at("communication"),
                      .exposed = pass.at("exposed")};
  for (const auto& bucket : pass.at("buckets")) run.typical_pass.buckets.push_back(bucket_of(bucket));
  return run;
}

}  // namespace

double Run::seconds() const {
  double sum = 0;
  for (const auto& epoch : epochs) sum += epoch.seconds;
  return sum;
}

double Run::rate() const {
  return static_cast<double>(samples) * static_cast<double>(epochs.size()) / seconds();
}

double Run::exposed_share() const { return total_exposed / seconds(); }

double Run::communication_share() const { return total_communication / seconds(); }

bool Run::disturbed() const { return world_size == 1 && cpu_seconds < kUndisturbed * seconds(); }

bool Run::identical() const {
  return !replicas.empty() &&
         std::all_of(replicas.begin(), replicas.end(), [&](const auto& hash) { return hash == replicas[0]; });
}

std::string Run::name() const {
  return fmt::format("{} process{}, {} thread{}{}", world_size, world_size == 1 ? "" : "es", threads,
                     threads == 1 ? "" : "s", world_size == 1 ? "" : " each");
}

std::string Run::full_command() const {
  return fmt::format("OMP_NUM_THREADS={} {}{}", threads,
                     world_size == 1 ? "" : fmt::format("lockstep run --nproc-per-node {} ", world_size),
                     command);
}

const Run* disturbed_one(const std::vector<Run>& runs) {
  const auto found = std::find_if(runs.begin(), runs.end(), [](const auto& run) { return run.disturbed(); });
  return found == runs.end() ? nullptr : &*found;
}

std::string speed_up(const std::vector<Run>& runs, const Run& run) {
  if (disturbed_one(runs) != nullptr) return "";
  return fmt::format("{:.2f}", runs.front().seconds() / run.seconds());
}

Run read_run(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(fmt::format("cannot open {}", path.string()));
  Run run;
  try {
    run = run_of(json::parse(file));
  } catch (const json::exception& error) {
    throw std::runtime_error(
        fmt::format("{} is not a run of fashion_mnist: {}", path.string(), error.what()));
  }
  if (run.losses.empty() || !(run.seconds() > 0) || run.world_size < 1) {
    throw std::runtime_error(fmt::format("the run in {} trained nothing", path.string()));
  }
  return run;
}

}  // namespace demo
