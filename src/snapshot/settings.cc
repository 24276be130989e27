#include "snapshot/settings.h"

#include <bit>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <set>

#include <lockstep/sharded_optimizer.h>

#include "base/error_text.h"
#include "base/log.h"
#include "base/printable.h"
#include "snapshot/checksum.h"
#include "snapshot/numbers.h"
#include "snapshot/optimizer_state.h"
#include "snapshot/scheduler_state.h"
#include "snapshot/sharing.h"

namespace lockstep::snapshot {

using nlohmann::json;

namespace {

constexpr const char* kRate = "lr of group ";

// "lr of group 0 of the optimizer 'optimizer' is 0.1 on rank 0, and 0.2 on ranks 1, 2"
std::string difference_in(const std::string& what, const std::vector<Settings>& by_rank) {
  std::map<std::string, std::vector<size_t>> ranks_with;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const auto found = by_rank[rank].find(what);
    ranks_with[found == by_rank[rank].end() ? "missing" : found->second].push_back(rank);
  }
  if (ranks_with.size() == 1) return {};
  std::map<size_t, std::string> by_first_rank;
  for (const auto& [value, ranks] : ranks_with) {
    by_first_rank[ranks.front()] =
        fmt::format("{} on rank{} {}", value, ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
  }
  std::vector<std::string> values;
  for (const auto& [rank, text] : by_first_rank) values.push_back(text);
  return fmt::format("{} is {}", what, fmt::join(values, ", and "));
}

std::string differences_between(const std::vector<Settings>& by_rank) {
  constexpr size_t kShown = 5;
  std::set<std::string> all;
  for (const auto& settings : by_rank) {
    for (const auto& [what, value] : settings) all.insert(what);
  }
  std::vector<std::string> shown;
  size_t more = 0;
  for (const auto& what : all) {
    const auto text = difference_in(what, by_rank);
    if (text.empty()) continue;
    if (shown.size() < kShown) {
      shown.push_back(text);
    } else {
      ++more;
    }
  }
  return fmt::format("{}{}", fmt::join(shown, "; "), more == 0 ? "" : fmt::format("; and {} more", more));
}

}  // namespace

void warn_of_other_rates(const std::vector<SnapshotPart>& parts, const Settings& before) {
  for (const auto& part : parts) {
    if (std::holds_alternative<AnyScheduler>(part.thing())) return;
  }
  const auto after = settings_of(parts);
  for (const auto& [what, rate] : before) {
    const auto now = after.find(what);
    if (!what.starts_with(kRate) || now == after.end() || now->second == rate) continue;
    base::log_warn(
        "{}",
        base::compose({.what = fmt::format("the {} is the snapshot's", base::printable(what)),
                       .evidence = fmt::format("{}; the program made it with {}", now->second, rate),
                       .hint = "give the scheduler to save() and resume() as well, or it starts at its "
                               "first step: resume(model, optimizer, scheduler). Nothing is wrong if the "
                               "program sets the rate of every step itself"}));
    return;
  }
}

Settings settings_of(const std::vector<SnapshotPart>& parts) {
  Settings all;
  for (const auto& part : parts) {
    if (auto* const* optimizer = std::get_if<torch::optim::Optimizer*>(&part.thing())) {
      const auto* const sharded = dynamic_cast<const ShardedOptimizer*>(*optimizer);
      const auto groups = options_of_groups(sharded != nullptr ? *sharded->blank_plain() : **optimizer);
      for (size_t i = 0; i < groups.size(); ++i) {
        for (const auto& [option, value] : groups[i].items()) {
          all[fmt::format("{} of group {} of the optimizer '{}'", option, i, part.name())] = readable(value);
        }
      }
    } else if (const auto* scheduler = std::get_if<AnyScheduler>(&part.thing())) {
      const auto counters = capture_scheduler(*scheduler);
      for (const auto& [counter, value] : counters.items()) {
        all[fmt::format("{} of the scheduler '{}'", counter, part.name())] = readable(value);
      }
    }
  }
  return all;
}

int64_t digest_of(const Settings& settings) {
  const auto text = json(settings).dump();
  return std::bit_cast<int64_t>(XXH3_64bits(text.data(), text.size()));
}

void warn_of_differences(ProcessGroup& group, const Settings& mine) {
  std::vector<Settings> by_rank;
  for (const auto& text : texts_of_all(group, json(mine).dump())) {
    by_rank.push_back(json::parse(text).get<Settings>());
  }
  if (group.rank() != 0) return;
  base::log_warn("{}",
                 base::compose({.what = "the ranks do not make the same steps: their optimizers differ",
                                .evidence = base::printable(differences_between(by_rank)),
                                .hint = "use the same value on every rank, as in torch::optim::SGD "
                                        "optimizer(ddp.parameters(), lockstep::scaled_lr(0.1, group)); "
                                        "a value derived from a loss must use lockstep::mean(loss, group)"}));
}

}  // namespace lockstep::snapshot
