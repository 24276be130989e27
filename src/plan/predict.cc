#include "plan/predict.h"

#include <algorithm>
#include <limits>

#include "plan/overlap.h"

namespace lockstep::plan {

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

Job with_buckets(Job job, double bucket_bytes) {
  job.bucket_bytes = bucket_bytes;
  return job;
}

// The costs that can be taken away.
struct Part {
  const char *key, *what;
  bool between_machines;
  void (*remove)(Constants&, Job&);
};

constexpr Part kParts[] = {
    {"link", "the links' bandwidth", true, [](Constants&, Job& job) { job.link_bits_per_s = kInfinite; }},
    {"messages", "the CPU time of messages", true, [](Constants& c, Job&) { c.message_s = 0; }},
    {"network_bytes", "the CPU time of bytes sent and received", true,
     [](Constants& c, Job&) { c.network_s_per_byte = 0; }},
    {"trips", "waiting for the first message of each bucket", true,
     [](Constants& c, Job& job) { c.trip_s = job.rtt_s = 0; }},
    {"memory", "reading and writing gradients in memory", false,
     [](Constants& c, Job&) { c.core_bytes_per_s = c.machine_bytes_per_s = kInfinite; }},
    {"wakeups", "waking the ranks of a machine", false,
     [](Constants& c, Job&) { c.local_call_s = c.crowded_call_s = 0; }},
};

}  // namespace

Prediction predict(const Constants& constants, const Job& job, Scheme scheme) {
  const auto buckets = buckets_of(scheme, job);
  std::vector<Cost> costs;
  costs.reserve(buckets.size());
  Prediction prediction{.buckets = static_cast<int>(buckets.size())};
  double messages = 0;
  for (const auto& bucket : buckets) {
    costs.push_back(cost_of(scheme, constants, job, bucket.bytes));
    prediction.link_bytes += costs.back().link_bytes;
    messages += costs.back().messages;
  }
  if (messages > 0) prediction.message_bytes = prediction.link_bytes / messages;

  const double backward_s = job.step_s * job.backward_share;
  const auto overlap = simulate(buckets, costs, backward_s, job.contention());
  prediction.exposed_s = overlap.ended_s - backward_s;
  prediction.step_s = job.step_s + prediction.exposed_s;
  for (const auto& bucket : overlap.buckets) prediction.communication_s += bucket.ended_s - bucket.begun_s;
  return prediction;
}

double best_bucket_bytes(const Constants& constants, const Job& job, Scheme scheme) {
  // 1, 1.5, 2, 3, 4, 6 … MiB, up to a size that holds the whole model.
  double best_bytes = bucket_bytes_of(scheme, job);
  double best_s = predict(constants, job, scheme).step_s * (1 - kWorthwhile);
  for (double power = kMiB;; power *= 2) {
    for (const double bytes : {power, 1.5 * power}) {
      if (job.gradient_bytes() / bytes > kMostBuckets) continue;
      const double step_s = predict(constants, with_buckets(job, bytes), scheme).step_s;
      if (step_s < best_s) {
        best_s = step_s;
        best_bytes = bytes;
      }
    }
    if (power >= job.gradient_bytes()) return best_bytes;
  }
}

std::vector<Relief> reliefs(const Constants& constants, const Job& job) {
  std::vector<Relief> found;
  for (const auto& part : kParts) {
    if (part.between_machines && job.machines == 1) continue;
    auto its_constants = constants;
    auto its_job = job;
    part.remove(its_constants, its_job);
    found.push_back({part.key, part.what, predict(its_constants, its_job).step_s});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Relief& a, const Relief& b) { return a.step_s < b.step_s; });
  return found;
}

}  // namespace lockstep::plan
