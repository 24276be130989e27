#include "snapshot/scheduler_state.h"

#include <fmt/format.h>
#include <limits>
#include <typeinfo>

#include <c10/util/Type.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/printable.h"
#include "compat/scheduler.h"
#include "snapshot/about.h"
#include "snapshot/optimizer_parts.h"

namespace lockstep::snapshot {

using nlohmann::json;

namespace {

std::string kind_name(const Scheduler&) { return "Scheduler"; }
std::string kind_name(const ReduceLROnPlateau&) { return "ReduceLROnPlateau"; }
std::string kind_name(const torch::optim::LRScheduler& scheduler) {
  return c10::demangle(typeid(scheduler).name());
}
std::string kind_name(const torch::optim::ReduceLROnPlateauScheduler&) {
  return "torch::optim::ReduceLROnPlateauScheduler";
}

double number_at(const json& saved, const char* name) {
  double number = 0;
  value_from_json(saved.at(name), number);
  return number;
}

json plateau_to_json(const auto& state) {
  return {{"best", value_to_json(double{state.best})},
          {"num_bad_epochs", state.num_bad_epochs},
          {"cooldown_counter", state.cooldown_counter},
          {"last_epoch", state.last_epoch}};
}

template <class State, class Count>
State plateau_from_json(const json& saved) {
  State state;
  state.best = static_cast<decltype(state.best)>(number_at(saved, "best"));
  state.num_bad_epochs = whole_at<Count>(saved, "num_bad_epochs");
  state.cooldown_counter = whole_at<Count>(saved, "cooldown_counter");
  state.last_epoch = whole_at<Count>(saved, "last_epoch");
  return state;
}

json counters_of(const Scheduler& scheduler) {
  const auto [last_step, base_lrs] = scheduler.state();
  json saved{{"last_step", last_step}, {"base_lrs", json::array()}};
  for (const double lr : base_lrs) saved["base_lrs"].push_back(value_to_json(lr));
  return saved;
}
json counters_of(const ReduceLROnPlateau& scheduler) { return plateau_to_json(scheduler.state()); }
json counters_of(torch::optim::LRScheduler& scheduler) {
  return {{"step_count", compat::step_count(scheduler)}};
}
json counters_of(torch::optim::ReduceLROnPlateauScheduler& scheduler) {
  return plateau_to_json(compat::plateau_state(scheduler));
}

std::function<void()> prepared(Scheduler& scheduler, const json& saved) {
  Scheduler::State state{.last_step = whole_at<int64_t>(saved, "last_step")};
  for (const auto& lr : saved.at("base_lrs")) value_from_json(lr, state.base_lrs.emplace_back());
  scheduler.check(state);
  return [&scheduler, state] { scheduler.restore(state); };
}
std::function<void()> prepared(ReduceLROnPlateau& scheduler, const json& saved) {
  const auto state = plateau_from_json<ReduceLROnPlateau::State, int64_t>(saved);
  return [&scheduler, state] { scheduler.restore(state); };
}
std::function<void()> prepared(torch::optim::LRScheduler& scheduler, const json& saved) {
  const auto count = whole_at<unsigned>(saved, "step_count");
  return [&scheduler, count] { compat::set_step_count(scheduler, count); };
}
std::function<void()> prepared(torch::optim::ReduceLROnPlateauScheduler& scheduler, const json& saved) {
  const auto state = plateau_from_json<compat::PlateauState, int>(saved);
  return [&scheduler, state] { compat::set_plateau_state(scheduler, state); };
}

}  // namespace

json capture_scheduler(const AnyScheduler& scheduler) {
  return std::visit(
      [](auto* known) {
        auto saved = counters_of(*known);
        saved["kind"] = kind_name(*known);
        return saved;
      },
      scheduler);
}

std::function<void()> prepare_scheduler(const AnyScheduler& scheduler, const json& saved) {
  return std::visit(
      [&](auto* known) {
        const auto kind = saved.at("kind").get<std::string>();
        if (kind == kind_name(*known)) return prepared(*known, saved);
        throw SnapshotError(base::compose(
            {.what = fmt::format("the snapshot's scheduler is not a {}", kind_name(*known)),
             .evidence = fmt::format("it is a {}", base::printable(kind)),
             .hint = "resume with the kind of scheduler that was saved; to use another one, leave it out of "
                     "this resume() and advance it to the current step (Scheduler::set_last_step)"}));
      },
      scheduler);
}

}  // namespace lockstep::snapshot
