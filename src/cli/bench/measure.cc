#include "cli/bench/measure.h"

#include <cstdlib>
#include <fmt/format.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <lockstep/process_group.h>

#include "base/env.h"
#include "cli/bench/exercise.h"
#include "comm/generation.h"
#include "comm/group.h"

namespace lockstep::bench {

namespace {

// Much longer than any single collective takes.
constexpr auto kTimeout = std::chrono::minutes(2);

struct Member {
  std::string backend;
  std::shared_ptr<ProcessGroup> group;
};

// Suppresses notes. A group that cannot be created writes a note, which the launcher would report as the
// reason of a later failure; here it is not a failure.
class WithoutNotes {
 public:
  WithoutNotes() : fd_(base::env_string(kName).value_or("")) { ::unsetenv(kName); }
  ~WithoutNotes() {
    if (!fd_.empty()) ::setenv(kName, fd_.c_str(), 1);
  }
  WithoutNotes(const WithoutNotes&) = delete;
  WithoutNotes& operator=(const WithoutNotes&) = delete;

 private:
  static constexpr const char* kName = "LOCKSTEP_NOTE_FD";
  std::string fd_;
};

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// The groups of all available backends, in the order of the options. A group remains usable after it is no
// longer the default group.
std::vector<Member> make_groups(const Options& options, Json& unavailable) {
  std::vector<Member> members;
  for (const auto& backend : options.backends) {
    try {
      const WithoutNotes without_notes;
      auto group = init_process_group({.backend = backend, .timeout = kTimeout});
      destroy_process_group();
      // On one machine, hybrid is shm.
      if (group->backend() == backend || options.backends_named)
        members.push_back({backend, std::move(group)});
    } catch (const UsageError& error) {
      unavailable.push_back({{"unavailable", backend}, {"why", first_line(error.what())}});
    }
  }
  return members;
}

// One variant in one row.
struct Contender {
  Row row;
  std::shared_ptr<ProcessGroup> group;
  Exercise exercise;
  std::vector<double> samples_us;
  std::optional<WrongElement> wrong;

  bool takes_part() const { return row.refused.empty(); }
  void examine() {
    exercise.fill();
    exercise.call();
    const auto found = exercise.check();
    if (!wrong) wrong = found;
  }
};

bool supplies_memory(const Member& member) {
  return comm::generation_of(*member.group)->transport->supplies_memory(c10::kCPU);
}

class Bench {
 public:
  Bench(const Options& options, std::vector<Member> members)
      : options_(options), members_(std::move(members)) {
    // The results are collected over the baseline of all comparisons, which has no registered memory, if it
    // is available.
    control_ = members_.front().group;
    for (const auto& member : members_) {
      if (!supplies_memory(member)) control_ = member.group;
    }
  }

  int world_size() const { return control_->world_size(); }
  void finish() { control_->barrier(); }

  // Only rank 0 gets complete rows.
  std::vector<Row> measure(const RowPlan& plan) {
    auto contenders = line_up(plan);
    for (auto& contender : contenders) {
      try {
        contender.examine();
      } catch (const UsageError& error) {
        // The arguments are the same on all ranks, so all of them throw.
        contender.row.refused = first_line(error.what());
      }
    }
    warm_up(contenders);
    for (int block = 0; block < kBlocks; ++block) {
      // Rotate the order, so that no contender always follows the same other one.
      for (size_t turn = 0; turn < contenders.size(); ++turn) {
        auto& contender = contenders[(turn + static_cast<size_t>(block)) % contenders.size()];
        if (!contender.takes_part()) continue;
        time_block([&] { contender.group->barrier(); }, contender.exercise.call,
                   samples_of_block(contender.row.samples, block), contender.row.calls_per_sample,
                   contender.samples_us);
      }
    }
    std::vector<Row> rows;
    for (auto& contender : contenders) {
      if (contender.takes_part()) {
        contender.examine();
        collect(contender);
      }
      rows.push_back(std::move(contender.row));
    }
    return rows;
  }

 private:
  std::vector<Contender> line_up(const RowPlan& plan) const {
    std::vector<Contender> contenders;
    for (const auto& dtype :
         plan.collective == Collective::Barrier ? std::vector{kDtypes[0]} : options_.dtypes) {
      for (const auto& member : members_) {
        for (const auto& memory : memories_of(member, plan)) {
          Contender contender;
          contender.group = member.group;
          contender.exercise = make_exercise(member.group, {.collective = plan.collective,
                                                            .size = plan.size,
                                                            .dtype = dtype,
                                                            .op = options_.op,
                                                            .registered = memory == "registered"});
          contender.row = {.world = member.group->world_size(),
                           .plan = plan,
                           .bytes = contender.exercise.bytes,
                           .dtype = plan.collective == Collective::Barrier ? "none" : dtype.name,
                           .op = options_.op,
                           .backend = member.backend,
                           .memory = memory,
                           .calls_per_sample = calls_per_sample(contender.exercise.bytes)};
          contenders.push_back(std::move(contender));
        }
      }
    }
    return contenders;
  }

  std::vector<std::string> memories_of(const Member& member, const RowPlan& plan) const {
    if (plan.collective == Collective::Barrier) return {"none"};
    if (!supplies_memory(member)) return {"plain"};
    return options_.memories;
  }

  // Also determines the number of samples, the same on all ranks.
  void warm_up(std::vector<Contender>& contenders) {
    auto sample_us = at::zeros({static_cast<int64_t>(contenders.size())}, at::kDouble);
    for (size_t i = 0; i < contenders.size(); ++i) {
      auto& contender = contenders[i];
      if (!contender.takes_part()) continue;
      contender.exercise.settle();
      contender.group->barrier();
      const int samples = std::max(options_.warmup, options_.iterations ? 0 : 1);
      const int calls = samples * contender.row.calls_per_sample;
      const auto begin = std::chrono::steady_clock::now();
      for (int call = 0; call < calls; ++call) contender.exercise.call();
      sample_us[static_cast<int64_t>(i)] = microseconds_since(begin) / std::max(samples, 1);
    }
    control_->all_reduce(sample_us, ReduceOp::Max);
    for (size_t i = 0; i < contenders.size(); ++i) {
      auto& contender = contenders[i];
      contender.row.samples = options_.iterations.value_or(
          samples_in(options_.seconds, sample_us[static_cast<int64_t>(i)].item<double>()));
      contender.samples_us.reserve(static_cast<size_t>(contender.row.samples));
    }
  }

  // Collects the samples and the check results of all ranks on rank 0.
  void collect(Contender& contender) {
    const auto wrong = contender.wrong.value_or(WrongElement{});
    std::vector<double> mine{contender.wrong ? 1.0 : 0.0, static_cast<double>(wrong.index), wrong.got,
                             wrong.wanted};
    for (const double sample : contender.samples_us) mine.push_back(sample / contender.exercise.calls_in_one);
    const auto all = control_->gather(at::tensor(mine, at::kDouble), 0);
    if (all.empty()) return;
    std::vector<std::vector<double>> by_rank;
    for (size_t from = 0; from < all.size(); ++from) {
      const auto* data = all[from].data_ptr<double>();
      by_rank.emplace_back(data + 4, data + all[from].numel());
      if (data[0] != 0 && contender.row.wrong.empty()) {
        contender.row.wrong =
            fmt::format("on rank {}, element {} is {}, should be {}", from, data[1], data[2], data[3]);
      }
    }
    contender.row.time = summarize(by_rank);
  }

  const Options& options_;
  std::vector<Member> members_;
  std::shared_ptr<ProcessGroup> control_;
};

}  // namespace

void measure_world(const Options& options, int rank, int rows_before, const Progress& progress,
                   const Sink& sink) {
  Json unavailable = Json::array();
  auto members = make_groups(options, unavailable);
  const bool first = rank == 0;
  for (const auto& entry : unavailable) {
    if (first) sink(entry);
  }
  if (members.empty()) return;

  Bench bench(options, std::move(members));
  int number = rows_before;
  for (const auto& plan : plan_rows(options)) {
    if (first) {
      progress.begin(number,
                     fmt::format("{} ranks, {} {}", bench.world_size(), facts_of(plan.collective).name,
                                 plan.size == 0 ? "" : size_text(plan.size)));
    }
    ++number;
    for (const auto& row : bench.measure(plan)) {
      if (first) sink({{"row", row_to_json(row)}});
    }
  }
  bench.finish();
}

}  // namespace lockstep::bench
