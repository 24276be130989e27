#include "cli/plan/output.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <string>
#include <vector>

#include "cli/report.h"
#include "plan/limits.h"
#include "plan/memory.h"
#include "plan/predict.h"
#include "plan/units.h"

namespace lockstep::cli {

namespace {

using plan::bytes_text;
using plan::count_text;
using plan::Job;
using plan::Prediction;
using plan::seconds_text;
using Json = Report::Json;

// A cost is shown if the step would be shorter by at least this part without it.
constexpr double kShown = 0.01;
// Another exchange is recommended if it saves at least this part of the step.
constexpr double kMuchFaster = 0.1;
constexpr double kManyReads = 1e6;

std::string percent(double part) { return fmt::format("{:.{}f} %", 100 * part, part < 0.0995 ? 1 : 0); }

std::string ranks_text(const Job& job) {
  return job.machines == 1
             ? fmt::format("{} on one machine", job.ranks())
             : fmt::format("{}: {} machines with {} each", job.ranks(), job.machines, job.ranks_per_machine);
}

Json constants_json(const plan::Constants& constants) {
  return {{"source", constants.source},
          {"core_bytes_per_s", constants.core_bytes_per_s},
          {"machine_bytes_per_s", constants.machine_bytes_per_s},
          {"local_call_s", constants.local_call_s},
          {"crowded_call_s", constants.crowded_call_s},
          {"trip_s", constants.trip_s},
          {"message_s", constants.message_s},
          {"network_s_per_byte", constants.network_s_per_byte}};
}

void add_job(Report& report, const plan::Constants& constants, const Job& job, const Prediction& prediction) {
  auto& section = report.section("job", "Job");
  section.row("ranks", "ranks", ranks_text(job), job.ranks())
      .row("cores", "cores",
           fmt::format(
               "{:g} of each machine, {}", job.cores(),
               job.spare_cores_per_machine > 0
                   ? fmt::format("of which {:g} are idle during the training", job.spare_cores_per_machine)
                   : "all in use by the training"),
           job.cores())
      .row("parameters", "model",
           fmt::format("{} parameters, {} of gradients in {} buckets of {}", count_text(job.parameters),
                       bytes_text(job.gradient_bytes()), prediction.buckets,
                       bytes_text(plan::bucket_bytes_of(plan::Scheme::Hybrid, job))),
           job.parameters)
      .row("compute_s", "step alone",
           fmt::format("{}, {} of it in the backward pass", seconds_text(job.step_s),
                       seconds_text(job.step_s * job.backward_share)),
           job.step_s);
  if (job.compressed()) {
    section.row("wire_element_bytes", "sent as",
                fmt::format("{:g} bytes for each gradient", job.wire_element_bytes), job.wire_element_bytes);
  }
  if (job.machines > 1) {
    section.row("link_bits_per_s", "link",
                fmt::format("{} in each direction, round trip {}", plan::bits_per_s_text(job.link_bits_per_s),
                            seconds_text(job.rtt_s)),
                job.link_bits_per_s);
  }
  section.row("constants", "constants", constants.source, constants_json(constants));
}

void add_memory(Report::Section& section, const Job& job) {
  const auto memory = plan::memory_of(job);
  section.row("memory_bytes", "memory of a rank",
              fmt::format("{}: parameters {}, gradients {}, optimizer {}, other {}\n"
                          "without activations and temporary tensors",
                          bytes_text(memory.total_bytes()), bytes_text(memory.parameters_bytes),
                          bytes_text(memory.gradients_bytes), bytes_text(memory.optimizer_bytes),
                          bytes_text(memory.library_bytes + memory.staging_bytes + memory.connections_bytes)),
              {{"total", memory.total_bytes()},
               {"parameters", memory.parameters_bytes},
               {"gradients", memory.gradients_bytes},
               {"optimizer", memory.optimizer_bytes},
               {"library", memory.library_bytes},
               {"staging", memory.staging_bytes},
               {"connections", memory.connections_bytes}});
}

std::string best_bucket_text(const plan::Constants& constants, const Job& job, const Prediction& prediction,
                             double best_bytes) {
  if (best_bytes == plan::bucket_bytes_of(plan::Scheme::Hybrid, job)) {
    return fmt::format("{}: no other size saves more than {}", bytes_text(best_bytes),
                       percent(plan::kWorthwhile));
  }
  auto better = job;
  better.bucket_bytes = best_bytes;
  const double step_s = plan::predict(constants, better).step_s;
  return fmt::format("{}: the step would take {}, {} less", bytes_text(best_bytes), seconds_text(step_s),
                     percent(1 - step_s / prediction.step_s));
}

void add_prediction(Report& report, const plan::Constants& constants, const Job& job,
                    const Prediction& prediction) {
  auto& section = report.section("prediction", "Prediction");
  section.row("step_s", "step", seconds_text(prediction.step_s), prediction.step_s)
      .row(
          "exposed_s", "exposed communication",
          fmt::format("{} ({} of {} are hidden behind the backward pass)", seconds_text(prediction.exposed_s),
                      seconds_text(std::max(0.0, prediction.communication_s - prediction.exposed_s)),
                      seconds_text(prediction.communication_s)),
          prediction.exposed_s)
      .row("efficiency", "efficiency",
           fmt::format("{} of a step without communication", percent(prediction.efficiency())),
           prediction.efficiency());
  if (job.machines > 1) {
    section.row("link_bytes", "bytes per link",
                fmt::format("{} in each direction", bytes_text(prediction.link_bytes)),
                prediction.link_bytes);
  }
  const double best_bytes = plan::best_bucket_bytes(constants, job);
  section.row("best_bucket_bytes", "best bucket size",
              best_bucket_text(constants, job, prediction, best_bytes), best_bytes);
  add_memory(section, job);
}

// What the step would take without each cost.
void add_costs(Report& report, const plan::Constants& constants, const Job& job,
               const Prediction& prediction) {
  auto& section = report.section("without", "The step would take, without the cost of");
  for (const auto& relief : plan::reliefs(constants, job)) {
    if (relief.step_s > (1 - kShown) * prediction.step_s) continue;
    section.row(relief.key, relief.what, seconds_text(relief.step_s), relief.step_s);
  }
  if (section.rows.empty())
    section.row("nothing", "anything", "hardly less: computing takes almost all of it");
}

void add_alternatives(Report& report, const plan::Constants& constants, const Job& job) {
  auto& section = report.section("alternatives", "The same job, otherwise");
  const auto add = [&](const char* key, const std::string& label, const Prediction& other) {
    section.row(key, label, seconds_text(other.step_s), other.step_s);
  };
  if (!job.compressed() && job.element_bytes > 2) {
    auto compressed = job;
    compressed.wire_element_bytes = 2;
    add("wire_bf16_s", "gradients sent as bf16", plan::predict(constants, compressed));
  }
  auto larger = job;
  larger.step_s *= 2;
  section.row("double_batch_s", "twice the batch, or two micro-batches with no_sync",
              fmt::format("{} for twice the samples", seconds_text(plan::predict(constants, larger).step_s)),
              plan::predict(constants, larger).step_s);
  add("ring_s", "one TCP ring over all ranks (PyTorch's Gloo)",
      plan::predict(constants, job, plan::Scheme::Ring));
}

void add_start(Report& report, const Job& job) {
  if (job.machines == 1) return;
  const auto rendezvous = plan::rendezvous_of(job);
  auto& section = report.section("start", "Connections");
  section.row(
      "connections", "of a rank",
      fmt::format("{}, and {:.0f} open files", job.ranks() - 1, plan::descriptors_of(job)),
      {{"connections", job.ranks() - 1}, {"open_files", static_cast<int64_t>(plan::descriptors_of(job))}});
  section.row(
      "rendezvous", "to connect",
      fmt::format("{} reads of the store, {}{}", count_text(rendezvous.reads), bytes_text(rendezvous.bytes),
                  rendezvous.reads > kManyReads
                      ? fmt::format(": its link is busy for {}", seconds_text(rendezvous.link_s))
                      : ""),
      {{"reads", rendezvous.reads}, {"bytes", rendezvous.bytes}, {"link_s", rendezvous.link_s}});
}

Report report_of(const plan::Constants& constants, const Job& job) {
  const auto prediction = plan::predict(constants, job);
  Report report;
  add_job(report, constants, job, prediction);
  add_prediction(report, constants, job, prediction);
  add_costs(report, constants, job, prediction);
  if (job.ranks() > 1) add_alternatives(report, constants, job);
  add_start(report, job);
  for (const auto& limit : plan::limits_reached(job, prediction)) report.problem(limit.what, limit.hint);
  const double ring_s = plan::predict(constants, job, plan::Scheme::Ring).step_s;
  if (job.machines > 1 && ring_s < (1 - kMuchFaster) * prediction.step_s) {
    report.problem(fmt::format("one TCP ring over all ranks would be faster: {}", seconds_text(ring_s)),
                   "measure both; LOCKSTEP_BACKEND=gloo selects the ring");
  }
  return report;
}

// ---- The table

// With the best bucket sizes.
struct TableRow {
  Job job;
  Prediction prediction;
  double ring_step_s = 0;
};

constexpr int kFirstRanks = 64, kLastRanks = 4096;

Job with_best_buckets(const plan::Constants& constants, Job job, plan::Scheme scheme) {
  job.bucket_bytes = plan::best_bucket_bytes(constants, job, scheme);
  return job;
}

std::vector<TableRow> table_rows(const plan::Constants& constants, Job job) {
  std::vector<TableRow> rows;
  for (int ranks = kFirstRanks; ranks <= kLastRanks; ranks *= 2) {
    const int machines = (ranks + job.ranks_per_machine - 1) / job.ranks_per_machine;
    if (!rows.empty() && rows.back().job.machines == machines) continue;
    job.machines = machines;
    const auto best = with_best_buckets(constants, job, plan::Scheme::Hybrid);
    const auto best_ring = with_best_buckets(constants, job, plan::Scheme::Ring);
    rows.push_back({best, plan::predict(constants, best),
                    plan::predict(constants, best_ring, plan::Scheme::Ring).step_s});
  }
  return rows;
}

}  // namespace

std::string plan_text(const plan::Constants& constants, const Job& job, bool colour) {
  return report_of(constants, job).as_text(colour);
}

std::string plan_json(const plan::Constants& constants, const Job& job) {
  return report_of(constants, job).as_json();
}

std::string plan_table_text(const plan::Constants& constants, const Job& job) {
  auto out = fmt::format(
      "Predictions for {} parameters, {} per step alone, machines with {} each, link {}\nConstants: {}\n\n",
      count_text(job.parameters), seconds_text(job.step_s), job.ranks_per_machine,
      plan::bits_per_s_text(job.link_bits_per_s), constants.source);
  const auto line = [&](const std::array<std::string, 9>& cells) {
    // fmt counts the columns of a string, not its bytes.
    out += fmt::format("{:>5}  {:>8}  {:>9}  {:>9}  {:>10}  {:>9}  {:>9}  {:>11}  {:>9}\n", cells[0],
                       cells[1], cells[2], cells[3], cells[4], cells[5], cells[6], cells[7], cells[8]);
  };
  line({"ranks", "machines", "step", "exposed", "efficiency", "per link", "bucket", "memory", "TCP ring"});
  for (const auto& row : table_rows(constants, job)) {
    line({fmt::format("{}", row.job.ranks()), fmt::format("{}", row.job.machines),
          seconds_text(row.prediction.step_s), seconds_text(row.prediction.exposed_s),
          percent(row.prediction.efficiency()), bytes_text(row.prediction.link_bytes),
          bytes_text(row.job.bucket_bytes), bytes_text(plan::memory_of(row.job).total_bytes()),
          seconds_text(row.ring_step_s)});
  }
  return out;
}

std::string plan_table_json(const plan::Constants& constants, const Job& job) {
  Json out;
  out["constants"] = constants_json(constants);
  out["rows"] = Json::array();
  for (const auto& row : table_rows(constants, job)) {
    out["rows"].push_back({{"ranks", row.job.ranks()},
                           {"machines", row.job.machines},
                           {"step_s", row.prediction.step_s},
                           {"exposed_s", row.prediction.exposed_s},
                           {"efficiency", row.prediction.efficiency()},
                           {"link_bytes", row.prediction.link_bytes},
                           {"bucket_bytes", row.job.bucket_bytes},
                           {"memory_bytes", plan::memory_of(row.job).total_bytes()},
                           {"ring_step_s", row.ring_step_s}});
  }
  return out.dump(2) + "\n";
}

}  // namespace lockstep::cli
